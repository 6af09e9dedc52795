"""Do intervals hold for checkpoints of several runs a size, by what `cluster=auto` resamples?

`python -m benchmarks.analysis_nested [studies=100] [processes=1] [resamples=200] [cluster=auto]
[cells=8x5x12-0-normal,14x4x8-0.4-heavy]`

A cell is SIZESxRUNSxCHECKPOINTS-SHARED-ERRORS: so many runs of each size, so many checkpoints of each run, the error
that the runs of a size share [% of the loss], and how the errors of runs are distributed (normal, or heavy: Student's t
of 3). Runs err by 0.4 %, their checkpoints by 0.05 % beside that, and all follow the law of
`benchmarks.analysis_intervals`. The table is as there, but findings that every study of a cell has do not count; the
forecast is of the loss of three times the largest size.
Needs numpy, scipy, pandas and statsmodels alone.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.inference.fit_law import fit_law
from analysis.text import commandline
from analysis.text.commandline import Key
from benchmarks.analysis_intervals import COLUMNS, LAW, SPEAKS, Line, table, truths
from benchmarks.key_values import values

RUN, CHECKPOINT, TAILS = 0.004, 0.0005, 3
"""Standard deviations of ln loss of a run and of a checkpoint beside it, and the degrees of freedom of heavy errors."""
LEAST, MOST, SHORT, LONG, FIRST = 5e7, 5e9, 5.0, 100.0, 0.3
"""Sizes, tokens per parameter of the runs, and the share of a run at which its first checkpoint is."""
FARTHER, AIM_RATIO = 3.0, 100.0
"""The forecast: how many times the largest size, and its tokens per parameter."""
GENERAL = {"few_sizes", "few_clusters", "shared_errors", "not_identified"}
"""Findings that are no word on one study: all of its cell have few sizes or runs, or a constant has no interval."""
KINDS, WAYS = ("normal", "heavy"), ("auto", "runs", "sizes", "none")


@dataclass(frozen=True)
class Cell:
    """A design: sizes, runs of each, checkpoints of each run; the error that a size shares; how runs err."""

    sizes: int
    runs: int
    checkpoints: int
    shared: float
    errors: str

    def __str__(self) -> str:
        """Return it as the heading of its lines."""
        return (
            f"{self.sizes} sizes, {self.runs} runs a size, {self.checkpoints} checkpoints a run, {self.errors} errors, "
            f"{100 * self.shared:g} % shared by a size"
        )


CELLS = tuple(
    Cell(*each)
    for each in (
        (8, 5, 12, 0.0, "normal"),
        (8, 5, 12, 0.004, "normal"),
        (5, 3, 20, 0.0, "normal"),
        (5, 3, 20, 0.004, "normal"),
        (14, 4, 8, 0.0, "heavy"),
        (14, 4, 8, 0.004, "normal"),
        (20, 3, 6, 0.004, "heavy"),
    )
)


def loss(params: Any, tokens: Any) -> Any:
    """Return the true loss."""
    return LAW["E"] + LAW["A"] / params ** LAW["alpha"] + LAW["B"] / tokens ** LAW["beta"]


def study(cell: Cell, seed: int) -> dict[str, Any]:
    """Return the checkpoints of a study as columns."""
    generator = np.random.default_rng([seed, cell.sizes, cell.runs, cell.checkpoints, KINDS.index(cell.errors)])
    ratios = np.geomspace(SHORT, LONG, cell.runs)
    size, ratio = (each.ravel() for each in np.meshgrid(np.geomspace(LEAST, MOST, cell.sizes), ratios, indexing="ij"))
    count = len(size)
    own = generator.normal(size=count)
    if cell.errors == "heavy":
        own = generator.standard_t(TAILS, size=count) / math.sqrt(TAILS)
    own = RUN * own + cell.shared * np.repeat(generator.normal(size=cell.sizes), cell.runs)
    run = np.repeat(np.arange(count), cell.checkpoints)
    params = size[run]
    tokens = params * ratio[run] * np.tile(np.geomspace(FIRST, 1.0, cell.checkpoints), count)
    errors = own[run] + CHECKPOINT * generator.normal(size=len(run))
    seen = loss(params, tokens) * np.exp(errors)
    return {"params": params, "tokens": tokens, "flops": 6.0 * params * tokens, "loss": seen, "run": run.astype(str)}


def one(task: tuple[Cell, int, int, str]) -> dict[str, Any]:
    """Return the answers of a study that have a truth, with what was resampled and its findings."""
    warnings.simplefilter("ignore")
    cell, seed, resamples, cluster = task
    begin = time.process_time()
    fit = fit_law(study(cell, seed), resamples=resamples, seed=seed, cluster=cluster)
    codes = frozenset(check.code for check in fit.check())
    speaks = bool(codes & (SPEAKS["surface"] - GENERAL))
    ends, found = fit.conf_int(), {**fit.params.to_dict(), **fit.derived.to_dict()}
    true = truths(1.0)
    lines = {
        name: [found[name], *(_end(each) for each in ends.loc[name]), true[name], speaks]
        for name in (*LAW, "a")
    }  # fmt: skip
    aim = FARTHER * MOST
    at = fit.get_prediction({"params": [aim], "tokens": [AIM_RATIO * aim]}).summary_frame().iloc[0]
    reach = (_end(at["mean_ci_lower"]), _end(at["mean_ci_upper"]))
    lines["loss"] = [float(at["mean"]), *reach, float(loss(aim, AIM_RATIO * aim)), speaks]
    return {
        "cell": cell, "answers": lines, "plan": fit.plan.text, "codes": sorted(codes),
        "seconds": time.process_time() - begin,
    }  # fmt: skip


def _end(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def cells_of(key: Key, text: str) -> list[Cell]:
    """Read cells, SIZESxRUNSxCHECKPOINTS-SHARED-ERRORS each."""
    found = []
    for word in text.split(","):
        try:
            counts, shared, errors = word.split("-")
            sizes, runs, checkpoints = (int(each) for each in counts.split("x"))
            found.append(Cell(sizes, runs, checkpoints, float(shared) / 100.0, errors))
        except ValueError:
            raise ValueError(f"{key.name}={text}: {word!r} is no cell ({key.help})") from None
        if min(sizes, runs, checkpoints) < 2 or not 0 <= found[-1].shared < 1 or errors not in KINDS:
            raise ValueError(f"{key.name}={text}: {word!r} is no cell ({key.help}), each count at least 2")
    return found


KEYS = (
    Key("studies", "studies of each cell", 100, commandline.whole),
    Key("processes", "processes that make them", 1, commandline.whole),
    Key("resamples", "resamples of each study", 200, commandline.resamples),
    Key("cluster", f"what is resampled, of {', '.join(WAYS)}", "auto", choices=WAYS),
    Key("cells", "SIZESxRUNSxCHECKPOINTS-SHARED-ERRORS, as in 8x5x12-0-normal,14x4x8-0.4-heavy", list(CELLS), cells_of),
)


def said(cell: Cell, studies: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Print what the studies of a cell say, and return its lines."""
    codes = Counter(code for each in studies for code in each["codes"])
    found = list(table(studies))
    print(cell)
    for plan, count in Counter(each["plan"] for each in studies).most_common():
        print(f"  {plan}: {count}")
    print("  findings: " + (", ".join(f"{code} {count}" for code, count in codes.most_common()) or "none"))
    print(*(line.text for line in found), sep="\n", flush=True)
    return found


def main() -> None:
    """Make the studies and print the table."""
    given = values("benchmarks.analysis_nested", (__doc__ or "").partition("\n")[0], KEYS, sys.argv[1:])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    asked = given["resamples"], given["cluster"]
    tasks = [(cell, seed, *asked) for cell in given["cells"] for seed in range(given["studies"])]
    made, lines, seconds = defaultdict(list), [], 0.0
    print(f"nominal 95 %; {asked[0]} resamples a study, cluster={asked[1]}")
    print(f"  {'':26}{COLUMNS[0]:>8}{COLUMNS[1]:>9}", "".join(f"{name:>8}" for name in COLUMNS[2:]), flush=True)
    with multiprocessing.get_context("spawn").Pool(given["processes"]) as pool:
        for found in pool.imap(one, tasks):
            seconds += found["seconds"]
            made[found["cell"]].append(found)
            if len(made[found["cell"]]) == given["studies"]:
                lines += said(found["cell"], made[found["cell"]])
    count_of = {verdict: sum(line.verdict == verdict for line in lines) for verdict in ("", "said", "chance", "MISS")}
    print(f"{len(tasks)} studies, {seconds / len(tasks):.2f} processor seconds each")
    for name in dict.fromkeys(line.name for line in lines):
        held = [line.held for line in lines if line.name == name and line.intervals]
        print(f"{name:6} held in {min(held):.2f} to {max(held):.2f} of the studies of a cell")
    print(
        f"{len(lines)} quantities: {count_of['']} held in 93 to 97 % of the studies; outside of that, findings say "
        f"why: {count_of['said']}, chance: {count_of['chance']}, MISS: {count_of['MISS']}"
    )


if __name__ == "__main__":
    main()
