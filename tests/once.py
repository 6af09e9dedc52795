"""What all workers of a test session share, a text or a folder: made by the one that asks first, read by the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def once(file: Path, make: Callable[[], str]) -> str:
    """Return the text of `file`, which is what `make` returns; where that fails, the next who asks tries again."""
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            file.write_text(make(), encoding="utf-8")
        return file.read_text(encoding="utf-8")


def folder_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return the folder, filled by `fill`, that nobody may change; where that fails, the next who asks tries again."""
    whole = folder.with_name(f"{folder.name}.whole")
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            whole.touch()
    return folder
