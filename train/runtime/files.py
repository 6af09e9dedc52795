"""Small files that are whole or absent, whatever is killed when, and what a file's content is."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from pathlib import Path
from typing import Any


def write_synced(path: Path, text: str) -> None:
    """Write a small file and wait until it is on disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """Replace a small file in one step: a reader finds the old one or the new one, never a part."""
    staged = path.with_name(f".{path.name}.staging")
    write_synced(staged, text)
    staged.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk, where the file system can be asked for that."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def check_writable(folder: Path, *files: str) -> None:
    """Raise ValueError with the reason where no file can be made in a folder, or one of these not be written to.

    The folder is made where it is missing, and a file written and removed: modes say little on many file systems.
    """
    trial = folder / f".trial-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            write_synced(trial, "x" * 4096)
        finally:
            trial.unlink(missing_ok=True)
        for path in map(folder.joinpath, files):
            if path.exists():
                path.open("ab").close()
    except OSError as error:
        place = error.filename or folder
        raise ValueError(
            f"{place}: {error.strerror}: the run writes its metrics and checkpoints to {folder}; let it, or free space "
            "there, and start it again"
        ) from None


def describe(path: Path) -> dict[str, Any]:
    """Return the size [bytes] and the sha256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
