"""How long `python -m study status` takes for a study of 10,000 points, and how much memory.

`python -m benchmarks.status_10000 [--points N]`. The study's files are made as jobs leave them: completed, failed,
running, queued and waiting points, also a study just submitted and one of which all completed. A stand-in for squeue
lists what lives. A first look at ended points reads three files of each; jobs that look after others as they end, and
any command, leave what they read for the next (study.status.cache). Before each first look here that is taken away, and
the ledger is as the jobs left it, without the ends that a look writes down. Files are in the page cache.
Goal for first and later looks: at most 1.0 s from the start of Python on, at most 200 MB. What was tried for it is in
benchmarks/status_notes.md.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from study.executors.job_spec import JobSpec
from study.records import ledger
from study.records.point import Point, point
from study.records.points import append_points
from study.storage.layout import StudyFolder
from train.spec.command_line import Parser
from train.spec.config import BudgetConfig, RunConfig
from train.spec.resolve import resolve

SECONDS, MEGABYTES = 1.0, 200.0
ARRAY = 1000
SUBMITTED = {"queued": 0.2, "waiting": 0.8}
MIXED = {"completed": 0.6, "failed": 0.02, "running": 0.03, "queued": 0.15, "waiting": 0.2}
LOOKS = 4
"""How often each is looked at; the quickest counts, since other work only ever adds to it."""


@dataclass(frozen=True)
class Look:
    """One call of a command: wall and CPU seconds, and the most memory [MB]."""

    seconds: float
    cpu: float
    megabytes: float


def make(folder: Path, count: int, shares: dict[str, float]) -> tuple[StudyFolder, list[str]]:
    """Write a study as its jobs leave it; return it with squeue's lines for what lives."""
    study = StudyFolder(folder)
    base = RunConfig()
    settled = resolve(replace(base, budget=BudgetConfig(tokens=12_800)))
    points = [point(replace(settled, seed=seed), (f"seed={seed}",)) for seed in range(count)]
    append_points(study, points, known=())
    resources = JobSpec().record()
    lines, made, at = list[str](), list[str](), 0
    for state, share in shares.items():
        some = points[at : at + round(share * count)]
        at += len(some)
        for first in range(0, len(some), ARRAY):
            chunk = some[first : first + ARRAY]
            keys = [p.key for p in chunk]
            if state == "waiting":
                ledger.append(study, "waiting", keys=keys, resources=resources, code="c", parallel=256)
                continue
            job = str(1000 + len(made))
            made.append(job)
            ledger.append(study, "intent", name=f"s.{job}", executor="slurm", keys=keys, resources=resources, code="c")
            ledger.append(study, "submitted", name=f"s.{job}", job_id=job)
            word = {"running": "RUNNING", "queued": "PENDING"}.get(state)
            for index, one in enumerate(chunk):
                if word:
                    lines.append(f"{job}|{index}|{word}|None|s.{job}")
                if state != "queued":
                    write_run(study, one, job, index, state)
    study.queue_note.write_text(json.dumps({"time": time.time(), "why": "MaxSubmitJobs of me is 2,000, all used"}))
    study.study.write_text("cluster: {executor: slurm}\ntracking: {enabled: false}\n", encoding="utf-8")
    return study, lines


def write_run(study: StudyFolder, one: Point, job: str, index: int, state: str) -> None:
    """Write a run's folder as one attempt leaves it."""
    run = study.run(one.key)
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    began = time.time() - 600
    about = {"name": f"s.{job}", "executor": "slurm", "job_id": f"{job}_{index}", "restart": 0, "nodes": ["n1"]}
    attempt.job.write_text(json.dumps({**about, "pid": 1, "host": "n1", "started": began, "code": "c", "world": 1}))
    record = {"kind": "train", "step": 7, "tokens": 7168, "metrics": {"loss": 3.5, "lr": 0.003, "seconds": 0.4}}
    run.metrics.write_text("".join(json.dumps({**record, "step": n}) + "\n" for n in range(1, 8)))
    end = {"ended": began + 60, "seconds": 60.0, "rank": 0, "signal": None}
    if state == "completed":
        loss = {"validation_nats_per_token": 3.2, "train_nats_per_token": 3.3}
        run.outcome.write_text(json.dumps({"format": 1, "state": state, "step": 12, "tokens": 12800, "loss": loss}))
        attempt.outcome.write_text(json.dumps({**end, "state": state, "exit_code": 0, "error": None}))
    elif state == "failed":
        error = "Traceback (most recent call last):\nRuntimeError: bad luck"
        attempt.outcome.write_text(
            json.dumps({**end, "state": state, "exit_code": 1, "error": error, "kind": "code_error"})
        )


def stand_ins(folder: Path, lines: Sequence[str]) -> Path:
    """Write a squeue that lists what lives, and a sacct that is switched off."""
    folder.mkdir()
    (folder / "list").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts = {"squeue": f"cat {folder}/list", "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1"}
    texts |= dict.fromkeys(("scontrol", "sdiag", "sbatch"), "exit 1")
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(stat.S_IRWXU)
    return folder


def look(words: Sequence[str], tools: Path) -> Look:
    """Run a command; return what it took."""
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "study", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    assert os.waitstatus_to_exitcode(status) in (0, 1) and b"Traceback" not in said, said.decode()
    return Look(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def report(name: str, study: StudyFolder, words: Sequence[str], tools: Path) -> bool:
    """Print the best first look and the best later one; return whether both reach the goal."""
    good, before = True, study.ledger.read_bytes()
    for what, again in (("first look", False), ("later looks", True)):
        looks = []
        for _ in range(LOOKS):
            if not again:
                study.status_cache.unlink(missing_ok=True)
                study.ledger.write_bytes(before)
            looks.append(look(words, tools))
        best, most = min(looks, key=lambda one: one.seconds), max(one.megabytes for one in looks)
        print(f"{name:<32}{what:<13}{best.seconds:>6.2f} s{best.cpu:>9.2f} s{most:>9.0f} MB")
        good &= best.seconds <= SECONDS and most <= MEGABYTES
    return good


def main() -> int:
    parser = Parser(description="Time status on a study of many points.")
    parser.add_argument("--points", type=int, default=10_000)
    count = parser.parse_args().points
    print(f"{f'{count:,} points':<44}{'wall':>9}{'CPU':>11}{'memory':>12}")
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        for name, shares in (("submitted", SUBMITTED), ("mixed", MIXED), ("all completed", {"completed": 1.0})):
            root = Path(scratch) / name.replace(" ", "-")
            study, lines = make(root / "s", count, shares)
            tools = stand_ins(root / "tools", lines)
            for words in (["status", str(study.path)], ["status", str(study.path), "--json"]):
                good &= report(f"{name}: {' '.join([words[0], *words[2:]])}", study, words, tools)
    print(f"load while measuring: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"goal ({SECONDS:g} s, {MEGABYTES:g} MB): {'reached' if good else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
