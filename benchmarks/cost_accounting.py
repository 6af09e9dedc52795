"""Device time of a study with requeues and failures: `study cost` beside accounting's own records.

`python -m benchmarks.cost_accounting [--points N] [--seconds S]` runs a study on a throwaway SLURM whose nodes hand out
GPUs (terminals, in truth), requeues a third of its jobs in the middle, lets one fail, and prints GPU-hours: the records
in the accounting database (sacct -D, each run's ElapsedRaw x its gres/gpu), what `study cost` says, what it says where
sacct is missing, and what one gets without asking for duplicates. Goal: within 1 %.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from study.executors.base import Answer
from study.status import cost
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.install import unavailable
from tests.slurm.lab import TINY, Lab, prepare, write_text
from train.spec.command_line import Parser

GOAL = 0.01
GPUS = 2
AFTER_SECONDS = 5.0


def main() -> int:
    """Print the comparison; 1 if `study cost` is off by more than 1 %."""
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--points", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long one run takes [s]")
    options = parser.parse_args()
    why = unavailable()
    if why:
        print(f"no throwaway SLURM here: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name, ThrowawayCluster(nodes=2, cpus_per_node=4, gpus_per_node=4) as cluster:
        folder = Path(name)
        write_text(folder / "text")
        prepare(folder)
        lab = Lab(folder, folder, cluster).with_trainer("quick", QUICK_SECONDS=options.seconds, QUICK_FAIL=2)
        return compare(lab, options.points)


def compare(lab: Lab, points: int) -> int:
    shape = (f"cluster.gpus_per_node={GPUS}", "cluster.time_minutes=5", "runtime.device=cpu")
    lab.sweep("study.name=cost", *TINY, *shape, f"seed=range({points})", "retry=never")
    requeued = disturb(lab, points)
    lab.study("watch", "cost", code=1)
    lab.tasks("cost")
    names = ",".join(event["name"] for event in lab.ledger("cost") if event["event"] == "intent")
    truth = sum(gpu_seconds(lab, names, "--duplicates")) / 3600
    hidden = sum(gpu_seconds(lab, names)) / 3600
    (said,) = json.loads(lab.study("cost", "cost", "--json"))["costs"]
    os.environ.update(lab.cluster.environment)
    folder = StudyFolder(lab.folder / "runs" / "cost")
    observer = Observer(folder)
    observer.refresh()
    (clocks,) = cost.measure(folder, observer.points, observer.statuses(), without_sacct)
    runs = len(gpu_seconds(lab, names, "--duplicates"))
    print(f"{points} points of {GPUS} GPUs, {requeued} requeued while they ran, 1 failed: {runs} runs of jobs")
    print(f"{'':<44}{'GPU-hours':>12}{'off by':>10}")
    for what, value in (
        ("accounting (sacct -D, ElapsedRaw x gres/gpu)", truth),
        ("study cost", said["used"]),
        ("study cost without sacct (attempts' clocks)", clocks.used),
        ("sacct without duplicates", hidden),
    ):
        print(f"{what:<44}{value:>12.5f}{value / truth - 1:>+10.2%}")
    print(f"study cost: lost to failures {said['lost']:.5f}, idle {said['idle']:.5f}, asked {said['asked']:.5f}")
    off = abs(said["used"] / truth - 1)
    print(f"goal: within {GOAL:.0%} of accounting with requeues: {'met' if off <= GOAL else 'not met'}")
    return 0 if off <= GOAL else 1


def disturb(lab: Lab, points: int) -> int:
    """Requeue a third of the jobs, each once it has been running for some seconds; return how many."""
    (job,) = lab.job_ids("cost")
    chosen = [f"{job}_{index}" for index in random.Random(0).sample(range(points), points // 3)]
    since: dict[str, float] = {}
    left = set(chosen)

    def requeued() -> bool:
        for task in lab.cluster.queue("--states=RUNNING"):
            began = since.setdefault(task.job_id, time.monotonic())
            if task.job_id in left and time.monotonic() - began > AFTER_SECONDS:
                lab.cluster.call("scontrol", "requeue", task.job_id)
                left.discard(task.job_id)
        return not left

    wait_for("the chosen jobs to be requeued", requeued, seconds=300, every=1.0)
    return len(chosen)


def gpu_seconds(lab: Lab, names: str, *options: str) -> list[int]:
    """Return the GPU-seconds of each run of a job that accounting names."""
    fields = ["--format=ElapsedRaw,AllocTRES", "--starttime=now-1day", f"--name={names}"]
    lines = lab.cluster.call("sacct", "-n", "-P", "-X", *options, *fields).splitlines()
    found = []
    for line in lines:
        seconds, _, tres = line.partition("|")
        held = dict(part.split("=") for part in tres.split(",") if part)
        found.append(int(seconds) * int(held.get("gres/gpu", 0)))
    return [seconds for seconds in found if seconds]


def without_sacct(command: object) -> Answer:
    """Answer as a site without accounting does."""
    return Answer(1, error="Slurm accounting storage is disabled")


if __name__ == "__main__":
    sys.exit(main())
