"""On what kind of file system something lies."""

from __future__ import annotations

import re
from pathlib import Path


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, as /proc says; "unknown" where it does not."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    return holding(path.absolute().resolve(), mounts)


def holding(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds an absolute path, by the text of `/proc/self/mountinfo`."""
    deepest, kind = 0, "unknown"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= deepest:  # of two on one place the later lies above
            deepest, kind = len(point.parts), after.split(" ")[0]
    return kind
