"""Peak memory as train.spec.accounting predicts it beside what torch measures, over layouts of models of 10M to 8B.

    python -m benchmarks.memory_predicted [--rows NAME ...] [--gpus 2] [--seconds 300] [--write benchmarks/results]

Each row is a process group of its own that takes a few steps of random tokens through the ordinary trainer; measured is
torch.cuda.max_memory_allocated of its fullest rank. Rows for more GPUs than there are, and all of them without one, are
predicted and not measured, which the table says. `--dry` takes one tiny row through the trainer on the CPU, to see that
everything is in place. This script has not run on a GPU yet; peaks that were measured before are in
tests/train/spec/accounting/test_accounting_step.py.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.peers.ours import config_of
from benchmarks.peers.rows import Row, find
from benchmarks.trainer_peers import about, run
from study.text import counted
from train.spec import mesh
from train.spec.accounting.step import Sheet, sheet

STEPS = 6
"""Steps of a row: the first makes moments, a graph is recorded after three."""
DRY = "ours-tiny+compile.blocks=false"
EAGER = "compile.blocks=false"


def names() -> list[str]:
    """Return the rows: a row of benchmarks.peers.rows, and what is changed in it."""
    small = [f"ours-{shape}" for shape in ("256x4", "384x6", "768x12")]
    one = [*small, *(f"{name}+{EAGER}" for name in small), f"ours-384x6+{EAGER}+{_micro(20)}"]
    for name, micro in (("ours-150m", 16), ("ours-1b", 1)):
        one += [name, f"{name}+{EAGER}", f"{name}+{_micro(micro)}", *_kept(name, ("full", "selective", "every"))]
    one += [f"ours-150m+precision.name=fp32+{_micro(16)}", "ours-150m+optim.name=muon", "ours-1b+precision.name=fp8"]
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


def compare(name: str, gpus: int, seconds: float, log: Path) -> Compared:
    """Return a row compared, run for at most `seconds` where there are GPUs enough."""
    row = find(name)
    expected = predicted(row)
    if row.gpus > gpus:
        return Compared(name, expected, why=f"on {counted(row.gpus, 'GPU')}, here are {gpus}")
    done = run(row, seconds, ["--steps", str(STEPS)], log)
    if not done.figures:
        return Compared(name, expected, why=done.failure)
    return Compared(name, expected, round(done.figures["gib_allocated"] * 2**30))


def table(rows: Sequence[Compared], memory: int | None) -> str:
    """Return the rows as a table, and below it the median and the worst error. memory: of a GPU [bytes]."""
    lines = ["| row | moment | predicted GiB | measured GiB | error |", "|---|---|---:|---:|---:|"]
    for row in rows:
        measured = "" if row.measured is None else f"{row.measured / 2**30:.3f}"
        error = row.why if row.error is None else f"{row.error:+.2%}"
        peak = row.predicted.peak
        lines.append(f"| {row.name} | {peak.name} | {peak.total / 2**30:.3f} | {measured} | {error} |")
    return "\n".join([about(), "", *lines, "", summary(rows, memory)])


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
    parser = argparse.ArgumentParser(description="predicted peak memory beside what torch measures")
    parser.add_argument("--rows", nargs="*", default=None, metavar="NAME", help="instead of all")
    parser.add_argument("--gpus", type=int, default=None, help="use at most so many; default: all there are")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of a row [s]")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="also write memory_predicted.md there, after every row"
    )
    parser.add_argument("--dry", action="store_true", help="two steps of a tiny row on the CPU")
    options = parser.parse_args()
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
        for name in options.rows or names():
            rows.append(compare(name, gpus, options.seconds, log))
            if options.write is not None:
                (options.write / "memory_predicted.md").write_text(table(rows, memory) + "\n", encoding="utf-8")
        print(table(rows, memory))


def _said(expected: Sheet) -> str:
    return f"{expected.peak.total / 2**20:.1f} MiB predicted"


if __name__ == "__main__":
    main()
