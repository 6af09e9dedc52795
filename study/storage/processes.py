"""Which processes of this machine live, and since when, by their numbers."""

from __future__ import annotations

import os
from pathlib import Path

START_FIELD = 19
"""Place of starttime (proc(5), field 22) among the fields from a process's state on."""
ENDED = frozenset("ZX")
"""States of one that has ended: it is listed until its parent asks for its exit code, which in a container whose
first process is no init never happens."""


def started(pid: int) -> str | None:
    """Return when a living process was started, in the kernel's ticks; None where it has ended or there is no /proc."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in ENDED else fields[START_FIELD]


def has_ended(host: str, pid: str) -> bool:
    """Whether a process of this machine is known to be no more."""
    if host != os.uname().nodename or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    fields = _stat(int(pid))
    return fields is not None and fields[0] in ENDED


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; the name before it may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
