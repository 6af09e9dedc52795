"""What earlier looks at a study found of points that can change no more: their files are not read again.

A file of its own beside the ledger; it may be deleted at any time. A point counts only while its run's outcome.json is
the very file that was read: same size, same time.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import TYPE_CHECKING

from study.failures.kinds import Kind
from study.records.shapes import SETTLED
from study.storage.files import write_atomic
from study.storage.layout import OUTCOME, StudyFolder
from study.storage.shapes import read_record

if TYPE_CHECKING:
    from study.status.states import PointStatus

Mark = tuple[int, int]
FORMS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float | None": (float, int, type(None)),
    "tuple[str, ...]": (list,),
    "PointState": (str,),
    "Kind": (str,),
}
"""What JSON has for each type of a status's fields."""
NEW_SHARE = 0.02
"""Not written again for fewer new points than this share of those that are remembered."""


class Remembered:
    """Settled points of one study, by key: the mark of their outcome.json and their status."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._path = str(folder.path)
        self._known: dict[str, tuple[Mark, PointStatus]] = {}
        self._new = 0

    @classmethod
    def load(cls, folder: StudyFolder) -> Remembered:
        """Return what was written down; nothing where there is no such file, or one of another version."""
        from study.status.states import PointState, PointStatus

        one = cls(folder)
        names = [field.name for field in fields(PointStatus)]
        loaded = read_record(folder.status_cache, SETTLED) or {}
        if loaded.get("fields") == names:
            forms = [FORMS[str(field.type)] for field in fields(PointStatus)]
            lists = [names.index(name) for name in ("overrides", "nodes", "error", "missing")]
            state, kind = names.index("state"), names.index("kind")
            for size, when, row in loaded.get("points") or ():
                if len(row) != len(names) or not all(map(isinstance, row, forms)):
                    return cls(folder)  # all of it is looked at again
                for place in lists:
                    row[place] = tuple(row[place])
                row[state], row[kind] = PointState(row[state]), Kind(row[kind])
                one._known[row[0]] = ((size, when), PointStatus(*row))
        return one

    def get(self, key: str, batch: str | None) -> PointStatus | None:
        """Return the status of a point of this batch, if it is remembered and its outcome is the same file."""
        found = self._known.get(key)
        if found is None or found[1].batch != batch or self._mark(key) != found[0]:
            return None
        return found[1]

    def add(self, status: PointStatus) -> None:
        """Remember a point that can change no more."""
        mark = self._mark(status.key)
        if mark is not None:
            self._known[status.key] = (mark, status)
            self._new += 1

    def save(self) -> None:
        """Write it down where that is worth it; a folder that cannot be written stays as it is."""
        if not self._new or self._new < NEW_SHARE * len(self._known):
            return
        rows = [[*mark, list(vars(status).values())] for mark, status in self._known.values()]
        names = list(vars(next(iter(self._known.values()))[1]))
        try:
            write_atomic(
                self._folder.status_cache, json.dumps({"fields": names, "points": rows}, separators=(",", ":"))
            )
        except OSError:
            return
        self._new = 0

    def _mark(self, key: str) -> Mark | None:
        try:
            seen = os.stat(f"{self._path}/{key}/{OUTCOME}")  # noqa: PTH116 - a Path costs more than the call
        except OSError:
            return None
        return seen.st_size, seen.st_mtime_ns
