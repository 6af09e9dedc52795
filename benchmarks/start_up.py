"""What a start costs: a small run from the start of its process to its first step, beside a bare `import torch`.

Ours and the bare import take turns; each is a fresh process. Seconds of the wall clock, and of a core, since the
process was started. Then points as a study trains them one after the other: in a process each, or in one that stays;
with compiled blocks the first one finds an empty cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.fake_corpus import write_corpus
from study.process.trainers import FRESH, Trainers, TrainerStart, WarmTrainers
from train.spec.command_line import Parser
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    CompileConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.resolve import resolve
from train.spec.yamlfile import dump

VOCABULARY, LENGTH = 256, 64
MARKS = ("python", "imports", "model", "first step")
BARE = """
import json, os, sys, time
import torch
t = os.times()
print(json.dumps({"imports": (time.monotonic(), t.user + t.system)}), file=open(sys.argv[1], "w"))
"""
OURS = """
import json, os, sys, time
marks = {}
def mark(name):
    t = os.times()
    marks.setdefault(name, (time.monotonic(), t.user + t.system))
mark("python")
import train.run
from train.spec import frozen_run
import torch
from train.trainer import Trainer
mark("imports")
def after(name, function):
    def called(*arguments, **options):
        done = function(*arguments, **options)
        mark(name)
        return done
    return called
Trainer.__init__ = after("model", Trainer.__init__)
Trainer._logged_step = after("first step", Trainer._logged_step)
place = sys.argv.pop(1)
code = train.run.main(sys.argv[1:])
print(json.dumps(marks), file=open(place, "w"))
sys.exit(code)
"""
Marks = dict[str, tuple[float, float]]
"""Seconds since the start of the process by name: of the wall clock, of a core."""


def small_run(data: Path, *, seed: int = 0, compiled: str | None = None) -> RunConfig:
    """Return a run of some steps on the device that is there; compiled: its blocks, with the cache in this folder."""
    return resolve(
        RunConfig(
            model=ModelConfig(width=64, layers=4, head_dim=16),
            data=DataConfig(name="fake", vocab_size=VOCABULARY, sequence_length=LENGTH),
            batch=BatchConfig(tokens=8 * LENGTH),
            budget=BudgetConfig(tokens=20 * 8 * LENGTH),
            eval=EvalConfig(sequences=8, count=1),
            runtime=RuntimeConfig(data_root=str(data), checkpoint_seconds=1e9, log_steps=1),
            compile=CompileConfig(blocks=compiled is not None, cache=compiled),
            seed=seed,
        )
    )


def write(folder: Path, config: RunConfig) -> Path:
    """Write a run's config into a new folder and return its path."""
    folder.mkdir(parents=True)
    path = folder / "config.yaml"
    path.write_text(dump(asdict(config)), encoding="utf-8")
    return path


def started(code: str, place: Path, *words: str) -> Marks:
    """Run Python code in a fresh process that writes its marks to `place`; return them, counted from its start."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code, str(place), *words], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    marks = json.loads(place.read_text(encoding="utf-8"))
    return {name: (wall - begun, core) for name, (wall, core) in marks.items()}


def used(pid: int | None) -> float:
    """Return the seconds of a core that a living process has used, with its children, and those that have ended."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime
    with contextlib.suppress(OSError):
        ticks = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:15]
        total += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return total


def first_step(trainers: Trainers, config: Path, there: int | None = None) -> tuple[float, float, int]:
    """Train two steps of a run in the process that is there, or in another.

    Returns the seconds from handing it over until its first step was recorded, those of a core until its end, and the
    process.
    """
    folder, begun, before = config.parent, time.time(), used(there)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    wanted = TrainerStart(config, 16 * LENGTH, environment, folder / "stdout", folder / "stderr")
    process = trainers.start(wanted)
    while process.poll() is None:
        time.sleep(0.01)
    if process.returncode:
        raise RuntimeError((folder / "stderr").read_text(encoding="utf-8"))
    first = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0]
    return float(json.loads(first)["time"]) - begun, used(process.pid) - before, process.pid


def points(folder: Path, rounds: int) -> Iterator[str]:
    """Train points by turns in a process each and in one that stays; yield lines of how long they took to begin."""
    trainers, data = WarmTrainers(), folder / "data"
    took: dict[str, list[tuple[float, float]]] = {"a process each": [], "one process that stays": []}
    *_, there = first_step(trainers, write(folder / "first", small_run(data)))
    for seed in range(rounds):
        for name, by, pid in (("a process each", FRESH, None), ("one process that stays", trainers, there)):
            clock, core, _ = first_step(by, write(folder / f"{name}{seed}", small_run(data, seed=seed)), pid)
            took[name].append((clock, core))
    trainers.close()
    for name, found in took.items():
        clock, core = (statistics.median(values) for values in zip(*found, strict=True))
        yield f"  {name:<50}{clock:>10.2f}{core:>10.2f}"
    cache, trainers, pid = str(folder / "cache"), WarmTrainers(), None
    for name, by in (
        ("compiled, nothing in the cache", FRESH),
        ("compiled, a process each", FRESH),
        ("", trainers),
        ("compiled, one process that stays", trainers),
    ):
        config = write(folder / f"compiled {name}", small_run(data, seed=len(name), compiled=cache))
        clock, core, pid = first_step(by, config, pid if by is trainers else None)
        if name:
            yield f"  {name:<50}{clock:>10.2f}{core:>10.2f}"
    trainers.close()


def median(found: list[Marks], name: str) -> str:
    """Return the median of a mark as text: seconds of the wall clock and of a core."""
    wall, core = (statistics.median(marks[name][i] for marks in found) for i in (0, 1))
    return f"{wall:>10.2f}{core:>10.2f}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each, after one that is not counted")
    rounds: int = parser.parse_args(arguments).rounds
    bare: list[Marks] = []
    ours: list[Marks] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.pop("STUDY_TRAINER", None)
        write_corpus(folder / "data", VOCABULARY, train_tokens=40_000, validation_tokens=4_000)
        for number in range(rounds + 1):
            config = write(folder / str(number), small_run(folder / "data"))
            tokens = str(8 * LENGTH)
            bare.append(started(BARE, folder / "bare.json"))
            ours.append(started(OURS, folder / "ours.json", "--config", str(config), "--until", tokens))
        later = list(points(folder, rounds))
    bare, ours = bare[1:], ours[1:]
    print(f"{'seconds from the start of the process, medians of ' + str(rounds):<52}{'clock':>10}{'core':>10}")
    print(f"{'bare `import torch`':<52}{median(bare, 'imports')}")
    print("python -m train.run, a small run")
    for mark in MARKS:
        print(f"  {mark:<50}{median(ours, mark)}")
    print("a study's next point: clock until its first step is recorded, core until its end after two steps")
    print("\n".join(later))
    return 0


if __name__ == "__main__":
    sys.exit(main())
