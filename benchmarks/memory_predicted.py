"""Peak memory as train.spec.accounting predicts it beside what torch measures, over layouts of models of 10M to 8B.

    python -m benchmarks.memory_predicted [--rows NAME ...] [--gpus 2] [--at-once 3] [--write benchmarks/results]

Each row is a process group of its own that takes a few steps of random tokens through the ordinary trainer; measured is
torch.cuda.max_memory_allocated of its fullest rank. Rows for more GPUs than there are, and all of them without one, are
predicted and not measured, which the table says. What another process holds is not counted, so rows may run beside each
other (`--at-once`); their step times are worth something only alone, with more `--steps`. Figures go to
memory_predicted.json too, which benchmarks.step_time_predicted reads, and which `--recorded` compares with the formulas
of today. `--dry` takes one tiny row through the trainer on
the CPU, to see that everything is in place.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.ours import config_of
from benchmarks.peers.rows import Row, find
from benchmarks.trainer_peers import about, run
from study.text import counted
from train.spec import mesh
from train.spec.accounting.step import Sheet, sheet
from train.spec.command_line import Parser

STEPS = 10
"""Steps of a row: the first makes moments, a graph is recorded after three."""
FULL = 110 * 2**30
"""What rows beside each other may need together, as predicted; a row that needs more runs alone [bytes]."""
DRY = "ours-tiny+compile.blocks=false"
EAGER = "compile.blocks=false"


def names() -> list[str]:
    """Return the rows: a row of benchmarks.peers.rows, and what is changed in it."""
    small = [f"ours-{shape}" for shape in ("256x4", "384x6", "768x12")]
    one = [*small, *(f"{name}+{EAGER}" for name in small), f"ours-384x6+{EAGER}+{_micro(20)}"]
    for name, micro in (("ours-150m", 16), ("ours-1b", 1)):
        one += [name, f"{name}+{EAGER}", f"{name}+{_micro(micro)}", *_kept(name, ("full", "selective", "every"))]
    one += [f"ours-150m+precision.name=fp32+{_micro(16)}", "ours-150m+optim.name=muon", "ours-1b+precision.name=fp8"]
    halves, eight = "precision.optimizer_state=bf16", "ours-8b-x1"
    one += [f"ours-1b+{EAGER}+memory.checkpointing=full", f"ours-150m+{EAGER}+memory.checkpointing=selective"]
    one += [f"ours-1b+{halves}", f"ours-1b+memory.checkpointing=full+{_micro(2)}"]
    one += [f"{eight}+{halves}", f"{eight}+{halves}+{_micro(1)}", f"{eight}+{halves}+{_micro(1)}+{EAGER}"]
    one += [f"{eight}+{_micro(1)}", f"{eight}+memory.offload=optimizer+{_micro(1)}"]
    sharded, eight = "ours-1b-fsdp-x2", "ours-8b-fsdp-x2"
    alone = f"{sharded}+parallel.dp_shard=1"
    two = [sharded, f"{sharded}+{EAGER}", *_kept(sharded, ("full",)), f"{sharded}+parallel.zero=2"]
    two += [f"{sharded}+parallel.zero=1+{_micro(4)}", f"{alone}+parallel.dp_replicate=2"]
    two += [f"{alone}+parallel.tp=2+{_micro(4)}"]
    two += [f"{alone}+parallel.pp=2+parallel.pp_schedule={kind}+{_micro(2)}" for kind in ("1f1b", "interleaved")]
    two += [*_kept(eight, ("full", "selective")), f"{eight}+memory.checkpointing=full+{_micro(1)}"]
    return [*one, *two, *_kept("ours-8b-tp-x2", ("full",))]


def _micro(sequences: int) -> str:
    return f"parallel.micro_batch_sequences={sequences}"


def _kept(name: str, policies: Sequence[str]) -> list[str]:
    return [f"{name}+memory.checkpointing={policy}" for policy in policies]


@dataclass(frozen=True)
class Compared:
    """A row's prediction and what became of it: measured bytes, or why there are none."""

    name: str
    predicted: Sheet
    measured: int | None = None
    why: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """How much more is predicted than was measured, as a share of it."""
        return None if self.measured is None else self.predicted.peak.total / self.measured - 1.0

    def wrongly_fits(self, memory: int) -> bool:
        """Whether it ran out of a memory that the prediction says it fits."""
        return "OutOfMemory" in self.why and self.predicted.needed <= memory


def predicted(row: Row) -> Sheet:
    """Return the sheet of a row's fullest rank on GPUs."""
    config = config_of(row, Path("nowhere"), "cuda")
    return sheet(config, mesh.axes(config.parallel, row.gpus))


def compare(name: str, gpus: int, seconds: float, log: Path, steps: int = STEPS) -> Compared:
    """Return a row compared, run for at most `seconds` where there are GPUs enough."""
    row = find(name)
    expected = predicted(row)
    if row.gpus > gpus:
        return Compared(name, expected, why=f"on {counted(row.gpus, 'GPU')}, here are {gpus}")
    done = run(row, seconds, ["--steps", str(steps)], log)
    if not done.figures:
        return Compared(name, expected, why=done.failure)
    return Compared(name, expected, round(done.figures["gib_allocated"] * 2**30), figures=done.figures)


def recorded(document: Mapping[str, Any]) -> list[Compared]:
    """Return all rows as they compare with what was measured before, by a document that `record` wrote."""
    measured = {row["row"]: round(row["gib_allocated"] * 2**30) for row in document["rows"]}
    return [
        Compared(name, predicted(find(name)), measured.get(name), "" if name in measured else "not measured yet")
        for name in names()
    ]


def batches(wanted: Sequence[str], at_once: int) -> list[list[str]]:
    """Return rows in groups that run beside each other: so many, of `FULL` bytes of predicted peaks at most."""
    found: list[list[str]] = []
    held = 0
    for name in wanted:
        size = predicted(find(name)).needed
        if not found or len(found[-1]) == at_once or held + size > FULL:
            found.append([])
            held = 0
        found[-1].append(name)
        held += size
    return found


def record(rows: Sequence[Compared]) -> str:
    """Return the measured rows as JSON: what torch allocated and reserved at most [GiB], seconds of a step [s]."""
    found = [
        {"row": one.name, "gpus": find(one.name).gpus, "step_ms": 1e3 * one.figures["step_seconds"]}
        | {name: one.figures[name] for name in ("gib_allocated", "gib")}
        for one in rows
        if one.figures
    ]
    return json.dumps({"about": about(), "rows": found}, indent=1) + "\n"


def table(rows: Sequence[Compared], memory: int | None, measured_on: str = "") -> str:
    """Return the rows as a table, and below it the median and the worst error. memory: of a GPU [bytes]."""
    lines = ["| row | moment | predicted GiB | measured GiB | error |", "|---|---|---:|---:|---:|"]
    for row in rows:
        measured = "" if row.measured is None else f"{row.measured / 2**30:.3f}"
        error = row.why if row.error is None else f"{row.error:+.2%}"
        peak = row.predicted.peak
        lines.append(f"| {row.name} | {peak.name} | {peak.total / 2**30:.3f} | {measured} | {error} |")
    return "\n".join([measured_on or about(), "", *lines, "", summary(rows, memory)])


def summary(rows: Sequence[Compared], memory: int | None) -> str:
    """Return the errors in a sentence."""
    errors: Mapping[str, float] = {row.name: abs(row.error) for row in rows if row.error is not None}
    if not errors:
        return f"{len(rows)} rows predicted, none measured: this needs a GPU."
    worst = max(errors, key=lambda name: errors[name])
    wrong = [row.name for row in rows if memory is not None and row.wrongly_fits(memory)]
    fits = (
        f"said to fit and out of memory: {', '.join(wrong)}" if wrong else "none that is said to fit ran out of memory"
    )
    median = statistics.median(errors.values())
    told = f"median error {median:.2%}, worst {errors[worst]:.2%} ({worst})"
    return f"{len(errors)} of {len(rows)} rows measured: {told}; {fits}."


def main() -> None:
    parser = Parser(description="predicted peak memory beside what torch measures")
    parser.add_argument("--rows", nargs="*", default=None, metavar="NAME", help="instead of all")
    parser.add_argument("--gpus", type=int, default=None, help="use at most so many; default: all there are")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of a row [s]")
    parser.add_argument("--all-seconds", type=float, default=1e9, help="time limit of all rows [s]")
    parser.add_argument("--at-once", type=int, default=1, help="rows that run beside each other")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a row, the first half of them warm-up")
    parser.add_argument("--write", type=Path, metavar="DIR", help="also write table and JSON there, after every row")
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="compare with its JSON instead of measuring")
    parser.add_argument("--dry", action="store_true", help="two steps of a tiny row on the CPU")
    options = parser.parse_args()
    if options.recorded is not None:
        document = json.loads(options.recorded.read_text(encoding="utf-8"))
        found = table(recorded(document), None, document["about"])
        print(found)
        if options.write is not None:
            (options.write / "memory_predicted.md").write_text(found + "\n", encoding="utf-8")
        return
    end = time.monotonic() + options.all_seconds
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        if options.dry:
            done = run(find(DRY), options.seconds, ["--device", "cpu", "--steps", "2", "--data", folder], log)
            print(f"{DRY} on the CPU: {done.failure or 'two steps done'}; {_said(predicted(find(DRY)))} on a GPU")
            return
        there = torch.cuda.device_count()
        gpus = there if options.gpus is None else min(there, options.gpus)
        memory = torch.cuda.get_device_properties(0).total_memory if there else None
        rows: list[Compared] = []
        for group in batches(options.rows or names(), options.at_once if there else 1):
            with ThreadPoolExecutor(len(group)) as pool:
                logs = [Path(folder) / f"{place}.txt" for place in range(len(group))]
                left = [max(1.0, end - time.monotonic())] * len(group)
                limits = [min(options.seconds, one) for one in left]
                many = [options.steps] * len(group)
                rows += pool.map(compare, group, [gpus] * len(group), limits, logs, many)
            for one in rows[-len(group) :]:
                print(f"{one.name}: {one.error if one.why == '' else one.why}", flush=True)
            if options.write is not None:
                (options.write / "memory_predicted.md").write_text(table(rows, memory) + "\n", encoding="utf-8")
                (options.write / "memory_predicted.json").write_text(record(rows), encoding="utf-8")
        print(table(rows, memory))


def _said(expected: Sheet) -> str:
    return f"{expected.peak.total / 2**20:.1f} MiB predicted"


if __name__ == "__main__":
    main()
