"""Files that are whole or as they were before: written beside their place, then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write a file by atomic rename, with the folders above it; what interrupts it leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_bytes(content.encode() if isinstance(content, str) else content)
        staged.replace(path)
    except OSError as error:  # of a full disk, which names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        staged.unlink(missing_ok=True)


def check_folder(key: str, path: Path) -> None:
    """Raise ValueError where a folder of results can neither be nor be made: before the work, not after it."""
    at = next(place for place in (path, *path.parents) if place.is_symlink() or place.exists())
    if not at.exists():
        raise ValueError(f"{key}={path}: {at} is a link to nowhere; remove it or give another folder")
    if not at.is_dir():
        raise ValueError(f"{key}={path}: {at} is a file, not a folder; give another folder")
    if not os.access(at, os.W_OK | os.X_OK):
        raise ValueError(f"{key}={path}: {at} cannot be written to; give another folder")
