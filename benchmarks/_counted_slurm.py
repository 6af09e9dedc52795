"""SLURM commands that note each call, to be first on PATH: who asks the scheduler how often."""

from __future__ import annotations

import shutil
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "sacctmgr", "sdiag", "sinfo", "scancel")


@dataclass(frozen=True)
class Call:
    """One call: when it began [s since the epoch], what, and whether from within a job."""

    time: float
    command: str
    in_job: bool


def install(folder: Path, path: str) -> Path:
    """Write the commands into a folder and return it."""
    folder.mkdir(parents=True)
    for name in COMMANDS:
        real = shutil.which(name, path=path)
        if real is None:
            continue
        # One short line, appended by one write: lines of several processes do not mix.
        note = f'echo "$EPOCHREALTIME {name} ${{SLURM_JOB_ID:-${{COUNTED_JOB:--}}}}" >> {folder}/calls'
        (folder / name).write_text(f'#!/bin/bash\n{note}\nexec {real} "$@"\n', encoding="utf-8")
        (folder / name).chmod(stat.S_IRWXU)
    return folder


def calls(folder: Path) -> list[Call]:
    """Return the calls so far, in order."""
    path = folder / "calls"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    parts = sorted(line.split(" ") for line in lines)
    return [Call(float(time), command, job != "-") for time, command, job in parts]


def busiest_minute(made: list[Call]) -> tuple[int, float]:
    """Return most calls within any 60 s, and the mean per minute from the first to the last."""
    times = [call.time for call in made]
    most = max((sum(begin <= t < begin + 60 for t in times) for begin in times), default=0)
    span = (times[-1] - times[0]) / 60 if len(times) > 1 else 0.0
    return most, len(times) / max(1.0, span)


def summary(made: list[Call]) -> str:
    """Return how often each command was called."""
    return ", ".join(f"{name} {n}" for name, n in Counter(call.command for call in made).most_common())
