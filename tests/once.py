"""What all workers of a test session share as a text: made by the one that asks first, read by the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def once(file: Path, make: Callable[[], str]) -> str:
    """Return the text of `file`, which is what `make` returns; where that fails, the next who asks tries again."""
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            file.write_text(make(), encoding="utf-8")
        return file.read_text(encoding="utf-8")
