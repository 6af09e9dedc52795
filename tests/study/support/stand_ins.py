"""Stand-ins for what submits points and for what follows them, for SLURM's commands, and for a disk of little room."""

from __future__ import annotations

import importlib
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLACES = {"step": "study.reconcile.step", "follow": "study.watch.follow"}


def stand_in(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Put functions in the place of `step` or `follow`, for what imports them when it is called.

    Modules that import them at the top are imported before: one that is first imported in the meantime would keep the
    stand-in for all tests that follow.
    """
    for name, function in functions.items():
        bound = re.compile(rf"^from {PLACES[name]} import .*\b{name}\b", re.MULTILINE)
        for file in sorted((ROOT / "study").rglob("*.py")):
            if bound.search(file.read_text(encoding="utf-8")) and file.stem != "__main__":
                importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        monkeypatch.setattr(f"{PLACES[name]}.{name}", function)


def slurm_commands(folder: Path, monkeypatch: pytest.MonkeyPatch, queue: str) -> Path:
    """Put stand-ins for SLURM's commands on PATH; return the file in which scancel and sbatch write what they are told.

    queue: what squeue prints.
    """
    folder.mkdir()
    texts = {
        "squeue": f"printf '{queue}'",
        "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
        "scancel": f'echo "$@" >> {folder}/told',
        "sbatch": f'echo sbatch >> {folder}/told; echo "Submitted batch job 8"',
    }
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "told"


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[Path]:
    """Mount a disk of this size at a new folder; the test is skipped where that is not allowed."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
