"""Submit 10,000 points through one command to a throwaway SLURM with tight limits: does each run, exactly once?

`python -m benchmarks.submit_10000 [--points N] [--real-every K]`. The cluster has MaxArraySize 1001 and lets the user
have 2,000 jobs (MaxSubmitJobs of the association). What does not fit is submitted by the jobs as they end; no process
stays behind. Every K-th job is the real `python -m study.job` with a trivial trainer; the others are a shell script
that does the same to the run folder, because 10,000 Python starts take an hour of two cores. Goals: every point runs
once, at most 3 ms a point for the command, at most 30 scheduler calls a minute, at most 5 s from the last sbatch to its
end.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from benchmarks import _counted_slurm as counted
from benchmarks.submit_points import write_text
from study.records import ledger
from study.records.points import known_keys
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import search_path, unavailable
from train.spec.command_line import Parser

ARRAY_SIZE, MOST_JOBS = 1001, 2000
MS_A_POINT, CALLS_A_MINUTE, SECONDS_AFTER = 3.0, 30, 5.0
OURS = (
    "JOB_INFO",
    "SUBMIT_BATCH",
    "STATS_INFO",
    "ASSOC_MGR",
    "BUILD_INFO",
    "PARTITION_INFO",
    "JOB_USER_INFO",
    "NODE_INFO",
)

TRAINER = """#!/bin/bash
run=${2%/config.yaml}
echo "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" >> "$run/ran"
echo '{"format":1,"state":"completed","step":1,"tokens":1,"loss":{}}' > "$run/outcome.new"
mv "$run/outcome.new" "$run/outcome.json"
"""
STAND_IN = """#!/bin/bash
# Called as a job calls Python: -u -m study.job FOLDER --name NAME. Every EVERY-th job is that, and the last alive.
study=$4 name=$6 index=$SLURM_ARRAY_TASK_ID
me=ALIVE/${SLURM_ARRAY_JOB_ID}_$index
: > "$me"
if (( index % EVERY )); then
  line=$(grep -F '"event":"intent","name":"'"$name"'"' "$study/ledger.jsonl")
  keys=${line#*'"keys":["'}
  run=$study/${keys:$((index * 15)):12}
  mkdir -p "$run"
  TRAINER --config "$run/config.yaml"
else
  PYTHON "$@"
  code=$?
fi
rm "$me"
left=(ALIVE/*)
[ -e "${left[0]}" ] || PYTHON "$@"
exit ${code:-0}
"""


def executable(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(stat.S_IRWXU)
    return path


def scripts(root: Path, every: int) -> tuple[Path, Path]:
    """Write the trivial trainer and the stand-in for Python."""
    (root / "alive").mkdir()
    trainer = executable(root / "trainer", TRAINER)
    words = {"EVERY": str(every), "ALIVE": str(root / "alive"), "TRAINER": str(trainer), "PYTHON": sys.executable}
    text = re.sub("|".join(rf"\b{word}\b" for word in words), lambda m: words[m[0]], STAND_IN)
    return trainer, executable(root / "python", text)


def command(root: Path, count: int, python: Path) -> list[str]:
    words = [f"paths.runs={root / 'runs'}", f"runtime.data_root={root / 'prepared'}", "cluster=slurm", "study.name=s"]
    words += ["cluster.mem_gb=0.01", "cluster.time_minutes=30", "cluster.array_parallelism=4000", "tracking=none"]
    words += [f"cluster.python={python}", "data=text", f"data.source={root / 'text'}", "data.name=bench"]
    words += ["data.tokenizer=bytes", "data.vocab_size=257", "data.validation_fraction=0.3", "budget.tokens=12800"]
    return [sys.executable, "-m", "study.sweep", *words, "eval.sequences=8", "-m", f"seed=range(0,{count})"]


def counts(study: StudyFolder, keys: list[str]) -> Counter[int]:
    """Return how many points ran how often."""
    ran = Counter[int]()
    for key in keys:
        path = study.run(key).path / "ran"
        ran[len(path.read_text().splitlines()) if path.exists() else 0] += 1
    return ran


def left_behind(root: Path) -> list[str]:
    """Return command lines of processes that name this study and are no jobs."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if any(str(root / "runs") in word for word in words) and "SLURM_JOB_ID" not in process.environ():
                found.append(" ".join(words))
        except psutil.Error:
            continue
    return found


def wait_for_all(study: StudyFolder, keys: list[str], limit: float) -> float:
    """Wait until every point has an outcome; print the way there; return the seconds it took."""
    begun = time.monotonic()
    shown = 0.0
    while time.monotonic() - begun < limit:
        with os.scandir(study.path) as entries:
            started = {entry.name for entry in entries}
        done = sum(key in started and study.run(key).outcome.exists() for key in keys)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"  {shown - begun:6.0f} s: {done:,} ended", file=sys.stderr, flush=True)
        if done == len(keys):
            break
        time.sleep(3)
    return time.monotonic() - begun


def main() -> int:
    parser = Parser(description="Submit 10,000 points to a throwaway SLURM with limits.")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--real-every", type=int, default=10, help="every K-th job is the real study.job")
    parser.add_argument("--limit", type=float, default=7200.0, help="give up after so long [s]")
    given = parser.parse_args()
    reason = unavailable()
    if reason:
        print(f"no throwaway SLURM here: {reason}", file=sys.stderr)
        return 1
    limits = (f"MaxArraySize={ARRAY_SIZE}", "AccountingStorageEnforce=limits")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as scratch,
        ThrowawayCluster(cpus_per_node=8, extra=limits) as cluster,
    ):
        root = Path(scratch)
        cluster.call("sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={MOST_JOBS}")
        write_text(root / "text")
        tools = counted.install(root / "tools", search_path())
        trainer, python = scripts(root, given.real_every)
        environment = cluster.full_environment(STUDY_TRAINER=str(trainer), OMP_NUM_THREADS="1")
        environment["PATH"] = f"{tools}:{environment['PATH']}"
        warm = command(root, 1, python)
        subprocess.run([*warm, "dry_run=true"], check=True, env=environment, stdout=subprocess.DEVNULL)
        cluster.call("sdiag", "--reset")
        return measured(root, given, cluster, environment)


def measured(root: Path, given: argparse.Namespace, cluster: ThrowawayCluster, environment: dict[str, str]) -> int:
    """Give the command, wait for every point to have run, and print what was seen."""
    tools, python = root / "tools", root / "python"
    before, begun = os.times(), time.time()
    done = subprocess.run(
        command(root, given.points, python), check=False, env=environment, capture_output=True, text=True
    )
    ended, after = time.time(), os.times()
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-2000:])
        return 1
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    last = max(call.time for call in counted.calls(tools) if call.command == "sbatch" and not call.in_job)
    stayed = left_behind(root)
    study = StudyFolder(root / "runs" / "s")
    keys = known_keys(study)
    first = list(ledger.read(study).batches.values())
    wait_for_all(study, keys, given.limit)
    took = time.time() - begun
    time.sleep(5)
    state, made = ledger.read(study), counted.calls(tools)
    ran, sizes = counts(study, keys), [len(batch.keys) for batch in state.batches.values()]
    most, mean = counted.busiest_minute(made)
    ms = (ended - begun) * 1000 / given.points
    refused = sum(batch.abandoned is not None for batch in state.batches.values())
    print(f"{given.points:,} points, MaxArraySize {ARRAY_SIZE}, MaxSubmitJobs {MOST_JOBS:,} (association)")
    print(f"1 of {given.real_every} jobs is study.job with a trivial trainer, the others a shell stand-in for it\n")
    print(f"the command          {ended - begun:.1f} s, of CPU {cpu:.1f} s: {ms:.2f} ms a point (goal {MS_A_POINT:g})")
    print(f"  submitted          {sum(len(b.keys) for b in first):,} points in {len(first)} arrays; the rest waits")
    print(f"  ended              {ended - last:.1f} s after the last sbatch (goal {SECONDS_AFTER:g})")
    print(f"  left running       {len(stayed)} processes (goal 0)")
    print(f"all had run after    {took:.0f} s, in {len(sizes)} arrays of {min(sizes)} to {max(sizes)} points")
    print(f"ran exactly once     {ran[1]:,}; never {ran[0]:,}; more than once {sum(ran.values()) - ran[0] - ran[1]:,}")
    print(f"scheduler calls      {len(made)}: {mean:.1f} a minute, {most} in the busiest (goal {CALLS_A_MINUTE})")
    print(f"  which              {counted.summary(made)}")
    print("  slurmctld counts   " + ", ".join(rpcs(cluster)))
    print(f"refused for a limit  {refused} submissions; still waiting {len(state.waiting)}")
    good = ran[1] == given.points and not stayed and most <= CALLS_A_MINUTE and ended - last <= SECONDS_AFTER
    print(f"goals: {'reached' if good and ms <= MS_A_POINT else 'missed'}")
    return 0


def rpcs(cluster: ThrowawayCluster) -> list[str]:
    """Return the controller's own counts of the requests that our commands make; srun and slurmd make others."""
    found = re.findall(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\) count:(\d+)", cluster.call("sdiag"), re.MULTILINE)
    return [f"{name.removeprefix('REQUEST_').lower()} {n}" for name, n in found if any(word in name for word in OURS)]


if __name__ == "__main__":
    sys.exit(main())
