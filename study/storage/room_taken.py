"""Room on a study's disk that runs which have begun are still going to take for their checkpoints.

Jobs that begin together on a disk that is nearly full would each count on the same room, and all of them be lost. Each
takes its own first, by an empty file that has key and bytes in its name, and leaves where the others have it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from study.storage.files import RunLock, folder_size, locked
from study.storage.layout import StudyFolder
from study.storage.room import LEAST_BYTES, free_bytes

FRESH_SECONDS = 120.0
"""How long room stays taken for a run that nobody has locked yet."""
LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class _Taken:
    path: Path
    key: str
    size: int


def take(folder: StudyFolder, key: str, needed: int) -> str:
    """Take `needed` bytes for a run; return why there are not so many beside the others, "" where they are taken.

    One that is alone is never refused: how much it needs is only estimated. So it is where nobody can tell.
    """
    try:
        folder.room.mkdir(exist_ok=True)
        with locked(folder.room_lock, LOCK_SECONDS):
            why = lacking(folder, key, needed)
            if not why:
                give_back(folder, key)
                (folder.room / f"{key}.{needed}").touch()
            return why
    except TimeoutError:
        return ""
    except OSError as error:
        return f"{error}: make room"


def give_back(folder: StudyFolder, key: str) -> None:
    """Give the room of a run back: it has ended."""
    for taken in _all(folder):
        if taken.key == key:
            taken.path.unlink(missing_ok=True)


def lacking(folder: StudyFolder, key: str, needed: int) -> str:
    """Return why there are not `needed` bytes for a run beside those of the others; "" where there are."""
    free = free_bytes(folder.path)
    if free is None or free - sum(taken.size for taken in _all(folder) if taken.key != key) >= needed + LEAST_BYTES:
        return ""
    left = left_beside(folder, key)
    if left is None or left >= needed + LEAST_BYTES:
        return ""
    short = f"{_size(left)} are left in {folder.path} by those that run there"
    return f"{short}, and it may need {_size(needed)}: it waits for them to end, or for more room"


def left_beside(folder: StudyFolder, key: str) -> int | None:
    """Return how many bytes the runs but this one will leave; None where none runs, or nobody can tell."""
    living = [taken for taken in _all(folder) if taken.key != key and _lives(folder, taken)]
    free = free_bytes(folder.path) if living else None
    if free is None:
        return None
    return max(0, free - sum(max(0, t.size - folder_size(folder.run(t.key).checkpoints)) for t in living))


def _all(folder: StudyFolder) -> Iterator[_Taken]:
    for path in folder.room.iterdir() if folder.room.is_dir() else ():
        key, _, size = path.name.partition(".")
        if size.isdigit():
            yield _Taken(path, key, int(size))


def _lives(folder: StudyFolder, taken: _Taken) -> bool:
    """Return whether a run that took room still has its lock, or is about to take it."""
    try:
        age = time.time() - taken.path.stat().st_mtime
    except FileNotFoundError:
        return False
    lock = folder.run(taken.key).lock
    return age < FRESH_SECONDS or (lock.exists() and not RunLock.is_free(lock))


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
