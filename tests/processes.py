"""Whether a process that is no child of the test has ended."""

from __future__ import annotations

import psutil


def has_ended(pid: int) -> bool:
    """Say whether it has, though nobody may have asked for its exit code: no init does where tests are process 1."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
