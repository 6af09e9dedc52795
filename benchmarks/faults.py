"""Faults done to runs, to SLURM's daemons and to what a study leans on, and how they were come through.

`python -m benchmarks.faults [--tries N] [--only WORD …]`. Every fault is done to real runs of a tiny model on a
throwaway SLURM in the middle of their steps, to `--tries` runs each. Columns: runs tried and runs that completed (or
ended as designed); what the end was classified as; who took the run up again (`requeue`: SLURM; `study`: the study by
itself; `retry`: a person); the most steps that one try did again, of at most one checkpoint interval; steps or points
that are there twice or not at all; whether every training loss is bitwise the undisturbed run's; the longest time from
the fault to the first step beyond it, the trainer's start, SLURM's own waits and
what else the machine does meanwhile included [s].
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks import _faults_jobs as jobs
from benchmarks import _faults_stores as stores
from benchmarks._faults_field import INTERVAL, STEPS, Field, Result, undisturbed
from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.daemons import Daemons
from tests.slurm.install import unavailable
from tests.slurm.lab import Lab, prepare, write_text
from train.spec.command_line import Parser

SLURM = (
    "SlurmdTimeout=10",
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE DefaultTime=5 State=UP",
)
Fault = Callable[[Field], Result]
OF_RUNS: dict[str, Fault] = {
    "limit": jobs.time_limit,
    "submitter": stores.submitter_killed,
    "trainer": jobs.trainer_killed,
    "supervisor": jobs.supervisor_killed,
    "job": jobs.everything_killed,
    "step": jobs.step_killed,
    "rank": jobs.rank_killed,
    "requeue": jobs.requeued,
    "scancel": jobs.scancelled,
    "hang": jobs.hung,
    "shard": jobs.shard_corrupted,
    "nan": jobs.nan_gradient,
    "memory": jobs.memory_exhausted,
    "group": jobs.memory_group_exhausted,
    "disk": stores.disk_full,
    "defect": jobs.code_defect,
    "syncer": stores.syncer_killed,
    "server": stores.server_killed,
}
"""Done to one study each: several at once, since all of them wait most of the time."""
OF_ALL: dict[str, Fault] = {
    "preemption": jobs.preempted,
    "slurmd": jobs.slurmd_killed,
    "node": jobs.node_died,
    "slurmctld": jobs.controller_killed,
    "outage": jobs.controller_away,
    "slurmdbd": jobs.accounting_killed,
}
"""Done to what all studies share: one after the other."""
FAULTS = {**OF_RUNS, **OF_ALL}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.faults", description="Faults, and what became of them.")
    parser.add_argument("--tries", type=int, default=2, help="runs that each fault is done to")
    parser.add_argument("--only", nargs="+", default=[], help="these faults only: " + ", ".join(FAULTS))
    parser.add_argument("--at-once", type=int, default=3, help="studies that faults are done to at the same time")
    parser.add_argument(
        "--keep", type=Path, help="file that keeps results, for doing it in parts: shown with the new ones"
    )
    options = parser.parse_args(arguments)
    reason = unavailable()
    if reason:
        print(f"no throwaway SLURM here: {reason}", file=sys.stderr)
        return 1
    wanted = options.only or list(FAULTS)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, ThrowawayCluster(extra=SLURM) as cluster:
        root = Path(scratch)
        write_text(root / "corpus" / "text")
        prepare(root / "corpus")
        lab = Lab(root, root / "corpus", cluster)
        field = Field(cluster, lab, undisturbed(lab, options.tries), options.tries, Daemons(cluster))
        try:
            results = _all(field, wanted, options)
        finally:
            field.daemons.close()
    print("\n".join(table(results)))
    print()
    print("\n".join(stores.checkpoint_speed()))
    print(f"\n{len(results)} classes of faults in {(time.monotonic() - begun) / 60:.1f} min")
    return 0 if all(good(result) for result in results) else 1


def _all(field: Field, wanted: Sequence[str], options: argparse.Namespace) -> list[Result]:
    kept = _kept(options.keep)

    def tried(name: str) -> None:
        kept[name] = _tried(name, lambda: FAULTS[name](field))
        print(row(kept[name]), file=sys.stderr, flush=True)
        if options.keep:
            options.keep.write_text(json.dumps({n: asdict(result) for n, result in kept.items()}), encoding="utf-8")

    with ThreadPoolExecutor(options.at_once) as several:
        list(several.map(tried, [name for name in OF_RUNS if name in wanted]))
    for name in OF_ALL:
        if name in wanted:
            tried(name)
    return [kept[name] for name in FAULTS if name in kept]


def _kept(path: Path | None) -> dict[str, Result]:
    """Return what earlier runs of this script found, by the fault's name."""
    if path is None or not path.exists():
        return {}
    return {name: Result(**said) for name, said in json.loads(path.read_text(encoding="utf-8")).items()}


def _tried(name: str, act: Callable[[], Result]) -> Result:
    """Do it; what goes wrong in doing it is a result that nobody survived, and the others are still tried."""
    try:
        return act()
    except Exception as error:
        traceback.print_exc()
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return Result(name, 1, 0, "-", "-", note=f"could not be done: {said[:120]}")


def good(result: Result) -> bool:
    """Whether it was come through as designed."""
    least = result.survived == result.tried and not result.duplicates and not result.lost
    return least and result.bitwise is not False


HEAD = (
    f"{'fault':<42}{'tried':>6}{'came through':>13}  {'classified as':<18}{'taken up by':<18}{'steps again':>12}"
    f"{'twice':>6}{'lost':>6}{'bitwise':>9}{'s':>7}"
)


def table(results: Sequence[Result]) -> list[str]:
    """Return the table with its notes."""
    lines = [f"runs of {STEPS} steps with a checkpoint every {INTERVAL} steps", "", HEAD, *map(row, results), ""]
    lines += [f"{result.fault}: {result.note}" for result in results if result.note]
    through = sum(good(result) for result in results)
    return [*lines, "", f"{through} of {len(results)} classes come through as designed"]


def row(result: Result) -> str:
    """Return one line of the table."""
    same = {None: "-", True: "yes", False: "NO"}[result.bitwise]
    steps = "-" if result.steps_lost is None else str(result.steps_lost)
    seconds = "-" if result.seconds is None else f"{result.seconds:.0f}"
    return (
        f"{result.fault:<42}{result.tried:>6}{result.survived:>13}  {result.kinds:<18}{result.by:<18}{steps:>12}"
        f"{result.duplicates:>6}{result.lost:>6}{same:>9}{seconds:>7}"
    )


if __name__ == "__main__":
    sys.exit(main())
