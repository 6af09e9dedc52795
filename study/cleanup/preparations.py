"""What killed preparations of data left in a data root: found by the marks that we wrote there, and removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from study.executors.prepare_data import is_left
from study.storage.files import folder_size
from study.storage.processes import has_ended
from train.spec.manifest import PREPARER, STAGING, lock_of

_STAGED = re.compile(rf"\.(.+){re.escape(STAGING)}[0-9a-f]{{8}}")


@dataclass(frozen=True)
class Left:
    """A folder that a preparation left whose process, of this machine, is gone; bytes: of its files."""

    folder: Path
    bytes: int


def collect(roots: Iterable[str | Path], really: bool) -> list[Left]:
    """Remove what killed preparations left in these data roots, or say with `really` False what that is.

    What another machine's process left stays: only there it is known to be gone. The next preparation of the same
    corpus tidies up as well.
    """
    return [one for root in sorted({Path(root).absolute() for root in roots}) for one in _of(root, really)]


def _of(root: Path, really: bool) -> Iterator[Left]:
    for folder in sorted(root.glob(".*")):
        if folder.is_symlink() or not folder.is_dir():
            continue
        if is_left(folder):
            yield _taken(folder, really)
        elif (staged := _STAGED.fullmatch(folder.name)) and _is_staging(folder):
            from filelock import FileLock, Timeout

            lock = lock_of(root / staged[1])
            if lock.is_file():  # a preparation holds it from before its folder is there until that is gone
                with suppress(Timeout), FileLock(lock, timeout=0):
                    if _is_staging(folder):
                        yield _taken(folder, really)


def _is_staging(folder: Path) -> bool:
    """Whether a process that is gone was making a corpus here."""
    try:
        host, _, pid = (folder / PREPARER).read_text(encoding="utf-8").strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return False
    return has_ended(host, pid)


def _taken(folder: Path, really: bool) -> Left:
    found = Left(folder, folder_size(folder))
    if really:
        shutil.rmtree(folder)
    return found
