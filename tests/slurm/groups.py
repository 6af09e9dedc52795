"""Memory groups of the kernel below this process's own, for jobs that are to be killed when they ask for too much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.slurm.cluster import wait_for
from tests.slurm.lab import TRAINERS, Lab

MOUNTED = Path("/sys/fs/cgroup")
PREFIX = f"cluster.prefix=[{TRAINERS / 'in_group'}]"
"""Runs the tasks of a study in such groups."""


@contextmanager
def memory_groups(lab: Lab) -> Iterator[Lab | None]:
    """Yield a lab whose jobs may have :data:`PREFIX`; None where this process may make no groups with a limit.

    They stay below its own, so that whatever holds for that holds for them.
    """
    found = _make()
    if found is None:
        yield None
        return
    folder, limit = found
    try:
        yield replace(lab, variables=(*lab.variables, ("GROUPS_IN", str(folder)), ("GROUP_LIMIT", limit)))
    finally:
        wait_for("the groups to be empty", lambda: _removed(folder), every=0.2)


def _make() -> tuple[Path, str] | None:
    """Make a group; return it with the name of the file that holds a group's limit."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("memory", ""):
            continue
        above, limit = (MOUNTED / "memory", "memory.limit_in_bytes") if controllers else (MOUNTED, "memory.max")
        folder = Path(f"{above}{path}") / f"throwaway-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            return folder, limit
        folder.rmdir()
    return None


def _removed(folder: Path) -> bool:
    try:
        for below in folder.iterdir():
            if below.is_dir():
                below.rmdir()
        folder.rmdir()
    except OSError:  # somebody is still in it
        return False
    return True
