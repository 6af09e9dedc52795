"""Short jobs on a site that takes few at once: how long does a study take whose jobs submit the rest as they end?

`python -m benchmarks.submit_waves [--points 20] [--seconds 5] [--room 4] [--most 5] [--times 5]`. A throwaway SLURM has
room for 4 jobs and MaxSubmitJobs 5: nearly every job begins with an sbatch from within another one. Beside it, on the
same cluster and by turns, all points are submitted at once and SLURM starts them. The time is that from the first
point's beginning to the last one's end; the ideal one has one wave after another without a pause. Jobs are the real
`python -m study.job`, whose starts take a busy machine seconds, with a trainer that sleeps.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks._real_kills import command
from benchmarks.submit_10000 import executable
from benchmarks.submit_points import write_text
from study.records import ledger
from study.records.points import known_keys
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.install import unavailable
from train.spec.command_line import Parser

TRAINER = """#!/bin/bash
run=${2%/config.yaml}
begin=$EPOCHREALTIME
sleep "$WAVE_SECONDS"
echo "$begin $EPOCHREALTIME" >> "$run/ran"
echo '{"format":1,"state":"completed","step":1,"tokens":1,"loss":{}}' > "$run/outcome.new"
mv "$run/outcome.new" "$run/outcome.json"
"""


@dataclass(frozen=True)
class Waves:
    """A study's seconds from its first point's beginning to its last one's end, arrays, and points that ran once."""

    limited: bool
    seconds: float
    arrays: int
    once: int


def measured(root: Path, limited: bool, name: str, points: int, environment: dict[str, str]) -> Waves:
    """Give the command of a study, and wait until its jobs have done all."""
    done = subprocess.run(command(root, name, points), check=True, env=environment, capture_output=True, text=True)
    study = StudyFolder(root / "runs" / name)
    keys = known_keys(study)
    assert len(keys) == points, done.stdout
    wait_for("all points", lambda: all(study.run(key).outcome.exists() for key in keys), every=1)
    notes = [(study.run(key).path / "ran").read_text(encoding="utf-8").splitlines() for key in keys]
    begins, ends = zip(*(map(float, line.split()) for lines in notes for line in lines), strict=True)
    arrays = sum(batch.job_id is not None for batch in ledger.read(study).batches.values())
    return Waves(limited, max(ends) - min(begins), arrays, sum(len(lines) == 1 for lines in notes))


def main() -> int:
    parser = Parser(prog="python -m benchmarks.submit_waves", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=20, help="points of a study")
    parser.add_argument("--seconds", type=float, default=5.0, help="what a point takes")
    parser.add_argument("--room", type=int, default=4, help="jobs that the cluster runs at once")
    parser.add_argument("--most", type=int, default=5, help="jobs that the user may have")
    parser.add_argument("--times", type=int, default=5, help="studies of each kind")
    given = parser.parse_args()
    reason = unavailable()
    if reason:
        print(f"no throwaway SLURM here: {reason}", file=sys.stderr)
        return 1
    found = studies(given)
    ideal = math.ceil(given.points / given.room) * given.seconds
    print(f"{given.points} points of {given.seconds:g} s, room for {given.room} jobs; {ideal:g} s are ideal")
    print(f"{'':16}{'studies':>8}{'least':>9}{'median':>9}{'most':>9}   arrays   points that ran exactly once")
    for limited, title in ((True, f"MaxSubmitJobs {given.most}"), (False, "no limit")):
        own = [one for one in found if one.limited == limited]
        took, arrays = sorted(one.seconds for one in own), [one.arrays for one in own]
        times = "".join(f"{each:7.1f} s" for each in (took[0], statistics.median(took), took[-1]))
        once = f"{sum(one.once for one in own)} of {given.points * len(own)}"
        print(f"{title:16}{len(own):>8}{times}{f'{min(arrays)} to {max(arrays)}':>9}   {once}")
    return 0


def studies(given: argparse.Namespace) -> list[Waves]:
    """Return the studies, one after another on one cluster, with the limit and without it by turns."""
    limits, found = ("AccountingStorageEnforce=limits",), []
    with tempfile.TemporaryDirectory() as scratch, ThrowawayCluster(given.room, 1, limits) as cluster:
        root = Path(scratch)
        write_text(root / "text")
        trainer = executable(root / "trainer", TRAINER)
        environment = cluster.full_environment(STUDY_TRAINER=str(trainer), WAVE_SECONDS=f"{given.seconds:g}")
        environment["OMP_NUM_THREADS"] = "1"
        subprocess.run([*command(root, "warm", 1), "dry_run=true"], check=True, env=environment, capture_output=True)
        for number in range(2 * given.times):
            most = given.most if number % 2 == 0 else -1
            cluster.call("sacctmgr", "-i", "modify", "user", cluster.settings.user, "set", f"MaxSubmitJobs={most}")
            found.append(measured(root, most > 0, f"s{number}", given.points, environment))
            wait_for("the queue to be empty", lambda: not cluster.queue(), every=1)
            print(f"load {os.getloadavg()[0]:.1f}: {found[-1]}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
