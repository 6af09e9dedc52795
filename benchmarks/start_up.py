"""What a start costs: a small run from the start of its process to its first step, beside a bare `import torch`.

Ours and the bare import take turns; each is a fresh process. Seconds of the wall clock, and of a core, since the
process was started.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.fake_corpus import write_corpus
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
            runtime=RuntimeConfig(data_root=str(data), checkpoint_seconds=1e9),
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


def median(found: list[Marks], name: str) -> str:
    """Return the median of a mark as text: seconds of the wall clock and of a core."""
    wall, core = (statistics.median(marks[name][i] for marks in found) for i in (0, 1))
    return f"{wall:>10.2f}{core:>10.2f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="starts of each, after one that is not counted")
    rounds: int = parser.parse_args(arguments).rounds
    bare: list[Marks] = []
    ours: list[Marks] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "data", VOCABULARY, train_tokens=40_000, validation_tokens=4_000)
        for number in range(rounds + 1):
            config = write(folder / str(number), small_run(folder / "data"))
            tokens = str(8 * LENGTH)
            bare.append(started(BARE, folder / "bare.json"))
            ours.append(started(OURS, folder / "ours.json", "--config", str(config), "--until", tokens))
    bare, ours = bare[1:], ours[1:]
    print(f"{'seconds from the start of the process, medians of ' + str(rounds):<52}{'clock':>10}{'core':>10}")
    print(f"{'bare `import torch`':<52}{median(bare, 'imports')}")
    print("python -m train.run, a small run")
    for mark in MARKS:
        print(f"  {mark:<50}{median(ours, mark)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
