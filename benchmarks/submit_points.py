"""Submit 1,000 points to a throwaway SLURM: seconds and bytes, beside submitit's own job arrays in the same run.

`python -m benchmarks.submit_points [--points N]`. Goal: 1,000 points in at most 10 s and 2 MB on disk in total. The
nodes are drained first, so that nothing but the submission is measured. Hydra's own submitit launcher is not among
the dependencies; it writes one pickle of about 140 kB a point after composing each point twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from study.config.schema import ClusterConfig
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.records.point import point
from study.records.points import append_points
from study.status.observer import observe
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable
from train.spec.command_line import Parser
from train.spec.config import BudgetConfig, RunConfig
from train.spec.resolve import resolve

SECONDS, MEGABYTES = 10.0, 2.0


@dataclass(frozen=True)
class Measured:
    """One way of submitting: wall seconds, bytes of file contents, bytes on disk as du counts them, files."""

    name: str
    seconds: float
    contents: int
    on_disk: int
    files: int

    def row(self) -> str:
        """Return it as a line of the table."""
        return (
            f"{self.name:<44}{self.seconds:>8.2f} s{self.contents / 1e6:>9.2f} MB"
            f"{self.on_disk / 1e6:>9.2f} MB{self.files:>8,}"
        )


def measure(name: str, folder: Path, action: Callable[[], object]) -> Measured:
    folder.mkdir(parents=True)
    begun = time.perf_counter()
    action()
    seconds = time.perf_counter() - begun
    files = [path for path in folder.rglob("*") if path.is_file()]
    contents = sum(path.stat().st_size for path in files)
    du = int(subprocess.run(["du", "-s", "-B1", folder], capture_output=True, check=True).stdout.split()[0])
    return Measured(name, seconds, contents, du, len(files))


def submit_points(folder: StudyFolder, count: int) -> None:
    base = RunConfig()
    frozen = [
        point(resolve(replace(base, seed=seed, budget=BudgetConfig(tokens=12_800))), (f"seed={seed}",))
        for seed in range(count)
    ]
    append_points(folder, frozen)
    step(folder, Services(), Submit([p.key for p in frozen], ClusterConfig(executor="slurm", mem_gb=0.1)))


def run_command(folder: Path, count: int, text: Path) -> None:
    command = [sys.executable, "-m", "study.sweep", f"paths.runs={folder}", f"runtime.data_root={text}/prepared"]
    command += ["cluster=slurm", "cluster.mem_gb=0.1", "data=text", f"data.source={text}", "data.name=bench"]
    command += ["data.tokenizer=bytes", "data.validation_fraction=0.3", "budget.tokens=12800", "eval.sequences=8", "-m"]
    command += [f"seed=range(0,{count})"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def submit_with_submitit(folder: Path, count: int) -> None:
    import submitit

    executor = submitit.SlurmExecutor(folder)
    executor.update_parameters(time=60, mem="100M", array_parallelism=256)
    for first in range(0, count, 1000):
        executor.map_array(abs, range(first, min(count, first + 1000)))


def write_text(folder: Path) -> Path:
    folder.mkdir()
    for index in range(40):
        (folder / f"{index}.txt").write_text(f"text {index} " * 200)
    return folder


def main() -> int:
    parser = Parser(description="Submit many points to a throwaway SLURM.")
    parser.add_argument("--points", type=int, default=1000)
    count = parser.parse_args().points
    reason = unavailable()
    if reason:
        print(f"no throwaway SLURM here: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch, ThrowawayCluster() as cluster:
        os.environ.update(cluster.environment)
        root, text = Path(scratch), write_text(Path(scratch) / "text")
        cluster.call("scontrol", "update", "nodename=ALL", "state=drain", "reason=benchmark")
        run_command(root / "first", 1, text)  # prepares the corpus, warms the disk
        study = StudyFolder(root / "ours" / "study")
        rows = [
            measure("scaling-study: freeze and submit", root / "ours", lambda: submit_points(study, count)),
            measure("scaling-study: the whole command", root / "cli", lambda: run_command(root / "cli", count, text)),
            measure("submitit map_array", root / "theirs", lambda: submit_with_submitit(root / "theirs", count)),
        ]
        begun = time.perf_counter()
        states = {status.state for status in observe(study)}
        looked = time.perf_counter() - begun
        cluster.call("scancel", "--user=root")
    print(f"{count:,} points{'':<32}{'wall':>12}{'contents':>12}{'on disk':>12}{'files':>8}")
    for row in rows:
        print(row.row())
    print(f"one look at all of them: {looked:.2f} s, they are {', '.join(sorted(states))}")
    ours = rows[0]
    good = ours.seconds <= SECONDS * count / 1000 and ours.on_disk <= MEGABYTES * 1e6 * count / 1000
    print(f"goal (10 s and 2 MB for 1,000 points): {'reached' if good else 'missed'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
