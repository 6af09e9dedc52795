"""Do the default intervals hold? Every quantity that is printed, over designs, numbers of runs and errors.

`python -m benchmarks.analysis_intervals [studies=100] [processes=1] [resamples=1000] [first=0] [out=FOLDER] [minutes=M]
[designs=isoflop,grid,ladder,random] [runs=20,50,100,200] [errors=normal,heavy,one_sided,skewed,shared,drift]
[cells=grid-50-normal,ladder-20-shared]`

Every study is a law that is known with new errors, and is answered as `python -m analysis.fit` answers it by default:
surface, valleys, frontier and what is recommended for ten times the largest run. Studies that are in FOLDER already
are not made again, so that a run that was stopped goes on, and several machines share one with `first=`. All cells
advance together, so that a run cut short, by hand or after `minutes=`, has as many studies of each. Tuning that drifts
from budget to budget (errors=drift) is only tried where it is asked for.
The table: coverage of the nominal 95 %, how often the interval lies below and above the truth, its median width over
the spread that estimates really have (1: as wide as need be), how often there is no two-sided interval, and how often a
finding speaks of it. A coverage outside of 93 to 97 % is `said` where a finding speaks of it in 99 % of the studies or
more; else it is `chance` where its 95 % interval (Wilson 1927) reaches into 93 to 97 %, and a `MISS` where not.
Needs numpy, scipy, pandas and statsmodels alone.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.approaches import compute_optimal, frontier, parametric, valleys
from analysis.approaches.surface import Surface
from analysis.diagnostics import findings
from analysis.inference.law_result import LawFit
from analysis.inputs.dataset import Array, Rows, rows
from analysis.planning import recommend
from analysis.planning.advice import Advice, Candidate, judge
from analysis.text import commandline
from analysis.text.commandline import Key
from analysis.values.blocks import Check
from benchmarks.key_values import counts, lists, values

LAW = {"E": 1.817218, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
DESIGNS = ("isoflop", "grid", "ladder", "random")
ERRORS = ("normal", "heavy", "one_sided", "skewed", "shared", "drift")
DRIFT = 0.15
"""Standard deviation over budgets of ln of the size that is best where tuning drifts."""
SPEAKS = {
    "surface": {
        "not_identified", "low_df", "few_sizes", "clustered_rows", "few_clusters", "shared_errors", "wild_rows",
        "biased_resamples", "undefined_draws", "lack_of_fit", "asymmetry", "surface_off",
    },
    "valleys": {
        "few_valleys", "valley_scatter", "undefined_draws", "asymmetry", "drifting_grid", "off_center", "edge_minimum",
        "flat_parabola", "inverted_parabola", "negative_parabola", "few_points", "not_isoflop",
    },
}  # fmt: skip
"""Findings that say why an interval of that approach may be too short, or wider than need be."""
WHERE = {"shared": ("grid", "ladder"), "drift": ("isoflop", "grid")}
"""Designs of errors that need several runs a size, or budgets."""
GOAL = (0.93, 0.97)
SAID = 0.99
COLUMNS = ("studies", "held", "below", "above", "width", "open", "finding")


@dataclass(frozen=True)
class Answer:
    """A printed quantity: its value, its interval (infinite on a side that is open), and the truth if it is known."""

    name: str
    value: float
    low: float
    high: float
    truth: float | None = None


@dataclass(frozen=True)
class Answers:
    """Everything that one study prints, with the codes of its findings: those about valleys apart."""

    each: tuple[Answer, ...]
    codes: frozenset[str]
    at_valleys: frozenset[str]
    unidentified: frozenset[str]


def study(design: str, runs: int, errors: str, seed: int) -> Rows:
    """Return a study of about `runs` runs, C = 6 N D, whose losses follow LAW with errors drawn by `seed`."""
    generator = np.random.default_rng([seed, runs, DESIGNS.index(design), ERRORS.index(errors)])
    params, tokens = _design(design, runs, generator)
    flops = 6.0 * params * tokens
    own = _errors(errors, params, generator)
    moved = np.exp(_drift(flops, generator)) if errors == "drift" else 1.0
    log_loss = np.log(_loss(params / moved, tokens * moved)) + own
    keys = tuple(f"r{i}" for i in range(len(params)))
    nominal = flops if design in ("isoflop", "grid") else None
    return rows(keys, params=params, tokens=tokens, flops=flops, loss=np.exp(log_loss), nominal=nominal)


def _loss(params: Array | float, tokens: Array | float) -> Any:
    return LAW["E"] + LAW["A"] / params ** LAW["alpha"] + LAW["B"] / tokens ** LAW["beta"]


def _design(design: str, runs: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return parameters and tokens: budgets x ratios, budgets x shared sizes, sizes x ratios, or anywhere."""
    few = max(3, min(10, round(np.sqrt(runs))))
    many = max(3, round(runs / few))
    if design == "isoflop":
        flops, ratio = np.meshgrid(np.geomspace(1e18, 1e21, few), np.geomspace(4, 100, many), indexing="ij")
        params = np.sqrt(flops / 6.0 / ratio).ravel()
        return params, flops.ravel() / 6.0 / params
    if design == "grid":
        step = np.log(25.0) / 2.0 / max(many - 1, 1)  # sizes of one budget span a factor of five
        best = 0.5 * np.log(np.geomspace(1e18, 1e21, few) / 6.0 / 20.0)
        index = np.round(best / step)[:, None] + np.arange(many) - (many - 1) // 2
        params = np.exp(index * step).ravel()
        return params, np.repeat(np.geomspace(1e18, 1e21, few), many) / 6.0 / params
    if design == "ladder":
        size, ratio = np.meshgrid(np.geomspace(5e7, 1e10, few), np.geomspace(5, 80, many), indexing="ij")
        return size.ravel(), (size * ratio).ravel()
    params = np.exp(generator.uniform(np.log(5e7), np.log(1e10), runs))
    return params, params * np.exp(generator.uniform(np.log(5.0), np.log(80.0), runs))


def _errors(kind: str, params: Array, generator: np.random.Generator) -> Array:
    """Return errors (n,) of ln loss whose median is 0, but for the runs of "one_sided" that went badly."""
    n = len(params)
    if kind == "heavy":
        return np.asarray(0.0048 * generator.standard_t(3, size=n) / np.sqrt(3.0))
    if kind == "skewed":
        return np.asarray(0.004 * (generator.exponential(size=n) - np.log(2.0)))
    own = 0.003 * generator.normal(size=n)
    if kind == "one_sided":
        bad = generator.choice(n, max(1, round(0.1 * n)), replace=False)
        own[bad] += generator.uniform(0.03, 0.08, len(bad))
    if kind == "shared":
        size = np.unique(np.round(np.log(params), 6), return_inverse=True)[1]
        own += 0.003 * generator.normal(size=int(size.max()) + 1)[size]
    return np.asarray(own)


def _drift(flops: Array, generator: np.random.Generator) -> Array:
    """Return by how much tuning moves ln of the best size (n,) at each budget, the lowest loss being as it was."""
    budget = np.unique(np.round(np.log(flops), 6), return_inverse=True)[1]
    return np.asarray(DRIFT * generator.normal(size=int(budget.max()) + 1)[budget])


def truths(budget: float) -> dict[str, float]:
    """Return the true constants, exponents, and N*, D* and loss for a budget [FLOPs]."""
    alpha, beta = LAW["alpha"], LAW["beta"]
    ratio = (alpha * LAW["A"] / (beta * LAW["B"])) ** (1.0 / (alpha + beta))
    params = ratio * (budget / 6.0) ** (beta / (alpha + beta))
    tokens = budget / 6.0 / params
    found = {"params": params, "tokens": tokens, "tokens_per_param": tokens / params, "loss": _loss(params, tokens)}
    return {**LAW, "a": beta / (alpha + beta), "b": alpha / (alpha + beta)} | {k: float(v) for k, v in found.items()}


def answers(given: Rows, *, resamples: int = 1000, loss: str = "huber", seed: int = 0) -> Answers:
    """Return what a study prints by default."""
    budget = 10.0 * float(given.labels.max())
    true = truths(budget)
    asked = {**parametric.PLAIN, "loss": loss, "resamples": resamples, "seed": seed}
    found, law = parametric.surface(given, asked)
    block = found.block if isinstance(found, Surface) else found
    surface = found if isinstance(found, Surface) else None
    valley_fit = valleys.fit(given, resamples=resamples, seed=seed)
    front = frontier.fit(given, valley_fit)
    each: list[Answer] = []
    if law is not None:
        ends = {str(name): pair for name, pair in zip(law.names, law.conf_int().to_numpy(), strict=True)}
        for name, value in {**law.params.to_dict(), **law.derived.to_dict()}.items():
            each.append(
                Answer(
                    str(name), float(value), float(ends[str(name)][0]), float(ends[str(name)][1]), true.get(str(name))
                )
            )
    each += _valleys(valley_fit)
    if isinstance(front, frontier.FrontierFit):
        each += _intervals("frontier ", front.block.params, front.block.intervals, {})
    plan = recommend.recommend(
        given, valley_fit, front, surface=surface, budget=budget, said=_advice(given, law, valley_fit, budget)
    )
    for approach, proposal in plan.by_approach.items() if plan else ():
        values = {name: getattr(proposal, name) for name in proposal.intervals}
        each += _intervals(f"{approach} ", values, proposal.intervals, true)
    said: list[Check] = [*block.checks, *findings.data(given, ())]
    said += findings.surface(block, given, recommend.clash(given, valley_fit, surface))
    names = {name for name, verdict in block.identified.items() if not verdict.identified}
    shared = {"asymmetry", "not_isoflop"} & {check.code for check in said}
    at_valleys = frozenset(check.code for check in valley_fit.block.checks) | shared
    return Answers(tuple(each), frozenset(check.code for check in said), at_valleys, frozenset(names))


def _advice(given: Rows, law: LawFit | None, valley_fit: valleys.ValleyFit, budget: float) -> Advice:
    """Return what may be advised of the rows, as a fit judges it."""
    candidate: Candidate | str = "it was not fitted"
    if law is not None:
        candidate = Candidate(law, *compute_optimal.priced(law, given))
    return judge(pd.DataFrame(), given, "chinchilla", candidate, valley_fit, checks=()).at(budget)


def _valleys(fit: valleys.ValleyFit) -> Iterator[Answer]:
    for i, valley in enumerate(v for v in fit.block.valleys if v.params_opt is not None):
        values = {"N*": valley.params_opt, "D*": valley.tokens_opt, "loss": valley.loss_opt}
        ends = {"N*": valley.params_interval, "D*": valley.tokens_interval, "loss": valley.loss_interval}
        yield from _intervals(f"valley {i} ", values, ends, {})
    exact = truths(1.0)
    for name, key in (("a", "params"), ("b", "tokens")):
        if key in fit.block.exponents:
            power = fit.block.exponents[key]
            yield from _intervals("valleys ", {name: power.exponent}, {name: power.exponent_interval}, exact)


def _intervals(
    prefix: str, values: Mapping[str, Any], ends: Mapping[str, Any], true: Mapping[str, float]
) -> Iterator[Answer]:
    for name, value in values.items():
        low, high = ends.get(name) or (np.nan, np.nan)
        if value is not None:
            yield Answer(prefix + name, float(value), float(low), float(high), true.get(name))


def outside(found: Answers) -> list[Answer]:
    """Return the answers whose value lies outside of their own interval."""
    return [a for a in found.each if a.value < a.low or a.value > a.high]


def speaks(found: Answers, name: str) -> bool:
    """Return whether a finding of the study says why this answer's interval may not hold."""
    if name.startswith("valleys"):
        return bool(found.at_valleys & SPEAKS["valleys"])
    own = name in found.unidentified or not name.isidentifier()
    codes = found.codes if own else found.codes - {"not_identified"}
    return bool(codes & SPEAKS["surface"])


def one(task: tuple[str, int, str, int, int]) -> dict[str, Any]:
    """Return a study's answers that have a truth, as plain values."""
    design, runs, errors, seed, resamples = task
    begin = time.process_time()
    found = answers(study(design, runs, errors, seed), resamples=resamples, seed=seed)
    lines = {
        a.name: [a.value, *(v if np.isfinite(v) else None for v in (a.low, a.high)), a.truth, speaks(found, a.name)]
        for a in found.each
        if a.truth is not None
    }
    return {
        "cell": [design, runs, errors], "seed": seed, "resamples": resamples, "answers": lines,
        "outside": [a.name for a in outside(found)], "codes": sorted(found.codes),
        "at_valleys": sorted(found.at_valleys), "seconds": time.process_time() - begin,
    }  # fmt: skip


def _path(folder: Path, design: str, runs: int, errors: str) -> Path:
    return folder / f"{design}-{runs}-{errors}.jsonl"


def recorded(path: Path) -> list[dict[str, Any]]:
    """Return the studies of a cell that were made, each seed once; a line cut by a stop is left out."""
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[int(value["seed"])] = value
    return list(found.values())


@dataclass(frozen=True)
class Line:
    """What the studies of a cell say of one quantity; shares of studies, `held` NaN where none has an interval."""

    name: str
    studies: int
    intervals: int
    held: float
    below: float
    above: float
    width: float
    open: float
    finding: float

    @property
    def raw(self) -> bool:
        """Whether the coverage lies in GOAL."""
        return not self.intervals or GOAL[0] <= self.held <= GOAL[1]

    @property
    def verdict(self) -> str:
        """Empty in GOAL; else whether findings say why not, or chance does, or it is a miss."""
        if self.raw:
            return ""
        if self.finding >= SAID:
            return "said"
        low, high = wilson(self.held, self.intervals)
        return "chance" if low <= GOAL[1] and high >= GOAL[0] else "MISS"

    @property
    def text(self) -> str:
        """The line of the table."""
        shares = f"{self.held:9.3f}{self.below:8.3f}{self.above:8.3f}{self.width:8.2f}{self.open:8.2f}"
        return f"  {self.name:26}{self.studies:8}{shares}{self.finding:9.2f}  {self.verdict}".rstrip()


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a probability of which `count` trials show this share (Wilson 1927)."""
    z2 = 1.959964**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    reach = np.sqrt(z2 * share * (1 - share) / count + z2**2 / (4 * count**2)) / (1 + z2 / count)
    return float(middle - reach), float(middle + reach)


def table(studies: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """Yield a line for every quantity of a cell; widths and spreads are taken relative to each study's truth."""
    lines: dict[str, list[list[Any]]] = defaultdict(list)
    for each in studies:
        for name, line in each["answers"].items():
            lines[name].append(line)
    for name, found in lines.items():
        value, low, high, truth = (np.array([line[i] for line in found], dtype=float) for i in range(4))
        spoken = np.array([line[4] for line in found])
        open_ = np.isnan(low) | np.isnan(high)
        there = ~(np.isnan(low) & np.isnan(high))
        below, above = (float(mask[there].mean()) if there.any() else np.nan for mask in (high < truth, low > truth))
        ideal = float(np.subtract(*np.quantile(value / truth, [0.975, 0.025])))
        wide = ((high - low) / truth)[~open_]
        width = float(np.median(wide)) / ideal if len(wide) and ideal > 0 else np.nan
        yield Line(
            name, len(found), int(there.sum()), 1.0 - below - above, below, above, width, float(open_.mean()),
            float(spoken.mean()),
        )  # fmt: skip


def made(tasks: Sequence[tuple[str, int, str, int, int]], folder: Path, processes: int, minutes: float) -> None:
    """Make these studies, each written as it is ready, and stop after so many minutes."""
    begin = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, found in enumerate(pool.imap_unordered(one, tasks), 1):
            with _path(folder, *found["cell"]).open("a") as file:
                file.write(json.dumps(found) + "\n")
            late = time.monotonic() - begin > 60.0 * minutes
            if done % 100 == 0 or done == len(tasks) or late:
                print(f"{done} of {len(tasks)} studies", file=sys.stderr, flush=True)
            if late:
                break


def cells_of(key: Key, text: str) -> list[tuple[str, int, str]]:
    """Read cells, DESIGN-RUNS-ERRORS each."""
    found = []
    for cell in text.split(","):
        design, runs, errors = [*cell.split("-"), "", ""][:3]
        if cell.count("-") != 2 or design not in DESIGNS or not runs.isdigit() or errors not in ERRORS:
            raise ValueError(f"{key.name}={text}: {cell!r} is no cell ({key.help})")
        found.append((design, int(runs), errors))
    return found


KEYS = (
    Key("studies", "studies of each cell", 100, commandline.whole),
    Key("processes", "processes that make them", 1, commandline.whole),
    Key("resamples", "resamples of each study", 1000, commandline.resamples),
    Key("first", "the seed of the first study, where several machines share a folder", 0, commandline.whole),
    Key("minutes", "begin no further study after this time [min]", math.inf, commandline.number),
    Key("out", "folder of what was made", "benchmarks/results/analysis_intervals"),
    Key("designs", f"of {', '.join(DESIGNS)}", list(DESIGNS), lists(DESIGNS)),
    Key("runs", "numbers of runs of a study", [20, 50, 100, 200], counts),
    Key("errors", f"of {', '.join(ERRORS)}", [kind for kind in ERRORS if kind != "drift"], lists(ERRORS)),
    Key("cells", "cells instead of all: DESIGN-RUNS-ERRORS, as in grid-50-normal,ladder-20-shared", [], cells_of),
)


def chosen(given: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return the cells that were asked for: design, runs, errors."""
    return given["cells"] or [
        (design, runs, errors)
        for design in given["designs"]
        for runs in given["runs"]
        for errors in given["errors"]
        if design in WHERE.get(errors, DESIGNS)
    ]


def main() -> None:
    """Make the studies that are not there yet and print the table."""
    given = values("benchmarks.analysis_intervals", (__doc__ or "").partition("\n")[0], KEYS, sys.argv[1:])
    folder = Path(given["out"])
    folder.mkdir(parents=True, exist_ok=True)
    first, count, resamples = given["first"], given["studies"], given["resamples"]
    cells = chosen(given)
    there = {cell: {each["seed"] for each in recorded(_path(folder, *cell))} for cell in cells}
    seeds = range(first, first + count)
    tasks = [(*cell, seed, resamples) for seed in seeds for cell in cells if seed not in there[cell]]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if tasks:
        made(tasks, folder, given["processes"], given["minutes"])
    seconds, wrong, lines = [], 0, []
    print(f"  {'':26}{COLUMNS[0]:>8}{COLUMNS[1]:>9}", "".join(f"{name:>8}" for name in COLUMNS[2:]), flush=True)
    for cell in cells:
        studies = recorded(_path(folder, *cell))
        seconds += [each["seconds"] for each in studies]
        wrong += sum(len(each["outside"]) for each in studies)
        found = list(table(studies))
        lines += found
        print(f"{cell[0]}, {cell[1]} runs, {cell[2]} errors")
        print(*(line.text for line in found), sep="\n", flush=True)
    count_of = {verdict: sum(line.verdict == verdict for line in lines) for verdict in ("", "said", "chance", "MISS")}
    print(f"{len(seconds)} studies, {np.mean(seconds):.2f} processor seconds each; {wrong} estimates outside intervals")
    print(f"{len(lines)} quantities in {len(cells)} cells: {count_of['']} held in 93 to 97 % of the studies")
    print(
        f"outside of that: {sum(not line.raw for line in lines)}, of which findings say why: {count_of['said']}, "
        f"chance: {count_of['chance']}, MISS: {count_of['MISS']}"
    )


if __name__ == "__main__":
    main()
