"""Whether a disk has room left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

LEAST_BYTES = 1 << 20


def is_full(folder: Path, least: int = LEAST_BYTES) -> bool:
    """Return whether a folder's disk has less than `least` bytes free, or takes no other file.

    False where the file system does not say. Quotas of users are not looked at.
    """
    seen = _disk(folder)
    if seen is None:
        return False
    takes_no_file = seen.f_files > 0 and seen.f_favail == 0
    return seen.f_bavail * seen.f_frsize < least or takes_no_file


def free_bytes(folder: Path) -> int | None:
    """Return how many bytes are free on a folder's disk; None where the file system does not say."""
    seen = _disk(folder)
    return None if seen is None else seen.f_bavail * seen.f_frsize


def _disk(folder: Path) -> os.statvfs_result | None:
    """Return what the file system says of a folder's disk; None where it says nothing."""
    try:
        seen = os.statvfs(folder)
    except OSError:
        return None
    return seen if seen.f_blocks > 0 else None


def check_room(folder: Path) -> None:
    """Raise OSError, which names the folder, where its disk is full."""
    if is_full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
