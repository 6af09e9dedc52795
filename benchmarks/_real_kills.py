"""The share of benchmarks.submission_kills that is done to whole commands on the throwaway SLURM."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.submit_10000 import TRAINER, executable
from benchmarks.submit_points import write_text
from study.records import ledger
from study.records.points import known_keys
from study.storage.layout import StudyFolder
from tests.slurm.cluster import ThrowawayCluster

POINTS, MOST_JOBS, ARRAY, KILLS_A_STUDY = 24, 8, 5, 20
END_SECONDS = 900.0


def run(kills: int, chance: random.Random) -> bool:
    """Kill commands of as many studies as it takes; print what came of it, and return whether every point ran once."""
    limits = (f"MaxArraySize={ARRAY}", "AccountingStorageEnforce=limits", "MinJobAge=20")
    ran, killed, ended, arrays = Counter[int](), 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch, ThrowawayCluster(extra=limits) as cluster:
        root = Path(scratch)
        cluster.call("sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={MOST_JOBS}")
        write_text(root / "text")
        trainer = executable(root / "trainer", TRAINER)
        environment = cluster.full_environment(STUDY_TRAINER=str(trainer), OMP_NUM_THREADS="1")
        begun = time.monotonic()
        subprocess.run([*command(root, "warm"), "dry_run=true"], check=True, env=environment, stdout=subprocess.DEVNULL)
        usual = time.monotonic() - begun
        while killed < kills:
            name, here = f"s{killed}", 0
            while here < min(KILLS_A_STUDY, kills - killed):
                words = command(root, name)
                if here and chance.random() < 0.4 and (root / "runs" / name / "points.jsonl").exists():
                    words = [sys.executable, "-m", "study", chance.choice(("status", "reconcile"))]
                    words += [name, "--runs", str(root / "runs")]
                was_killed = kill(words, environment, chance.uniform(0.2, 1.3) * usual)
                here, ended = here + was_killed, ended + (not was_killed)
            killed += here
            study = StudyFolder(root / "runs" / name)
            to_the_end(command(root, name), environment, study)
            notes = [study.run(key).path / "ran" for key in known_keys(study)]
            ran += Counter(len(note.read_text().splitlines()) if note.exists() else 0 for note in notes)
            arrays += sum(batch.job_id is not None for batch in ledger.read(study).batches.values())
    total = sum(ran.values())
    print(f"throwaway SLURM: MaxSubmitJobs {MOST_JOBS}, MaxArraySize {ARRAY}, {POINTS} points a study, whole commands")
    print(f"  killed             {killed:,} commands at random moments; {ended:,} others ended before")
    print(f"  points             {total:,} in {arrays} arrays; lost {ran[0]}, run twice {total - ran[0] - ran[1]}")
    return ran[1] == total


def command(root: Path, name: str, points: int = POINTS) -> list[str]:
    """Return the command that makes a study of so many points."""
    words = [f"paths.runs={root / 'runs'}", f"runtime.data_root={root / 'prepared'}", "cluster=slurm"]
    words += [f"study.name={name}", "cluster.mem_gb=0.1", "tracking=none", "data=text", f"data.source={root / 'text'}"]
    words += ["data.name=bench", "data.tokenizer=bytes", "data.vocab_size=257", "data.validation_fraction=0.3"]
    words += ["budget.tokens=12800", "eval.sequences=8", "-m", f"seed=range(0,{points})"]
    return [sys.executable, "-m", "study.sweep", *words]


def kill(words: list[str], environment: dict[str, str], after: float) -> bool:
    """Start a command and kill it after so many seconds; return whether it still ran."""
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def to_the_end(words: list[str], environment: dict[str, str], study: StudyFolder) -> None:
    """Give the command once more, undisturbed, and wait until the jobs have done the rest."""
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    limit, keys = time.monotonic() + END_SECONDS, known_keys(study)
    while time.monotonic() < limit and not all(study.run(key).outcome.exists() for key in keys):
        time.sleep(1)
    time.sleep(5)  # for jobs that nobody wants any more
