"""Whether what a record says was asked for in this study, or in another one of which this is a copy.

`cp -r` copies the names and ids of jobs, but jobs write where they were submitted. A folder that was moved, or is
reached by a link or another mount, is still the one that they were submitted in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from study.storage.layout import StudyFolder


def others(places: Iterable[str | None], folder: StudyFolder) -> set[str]:
    """Return which of these places, as records name them, are other studies' folders (see :func:`is_another`)."""
    return {place for place in places if place is not None and is_another(place, folder)}


def is_another(place: str, folder: StudyFolder) -> bool:
    """Return whether the study that was at `place` when a record was made is there still, and is not this one.

    Where nothing is left there, or a study that began anew, this one was moved from there. What cannot be looked at is
    another's: its jobs must not be touched. Records of both are told by their first event, whose time no two share.
    """
    here, there = folder.path.absolute(), Path(place)
    if place == str(here):
        return False
    try:
        if _is_same(there, here):
            return False
        return _first_event(StudyFolder(there).ledger) == _first_event(folder.ledger)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _is_same(there: Path, here: Path) -> bool:
    """Return whether two paths lead to one folder; by different mounts of a file system only numbers of files agree."""
    pairs = [(StudyFolder(one).ledger.stat(), one.stat()) for one in (there, here)]
    (ledger, folder), (own_ledger, own_folder) = pairs
    by_mounts = (ledger.st_ino, folder.st_ino) == (own_ledger.st_ino, own_folder.st_ino)
    return os.path.samestat(folder, own_folder) or by_mounts


def _first_event(ledger: Path) -> bytes:
    with ledger.open("rb") as file:
        return file.readline()
