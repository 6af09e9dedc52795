"""Removing copies of the code that no job and no point needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from study.process.code_snapshot import SHELF, STAGING, is_ours, is_whole, remove_copy
from study.process.code_version import MARKER
from study.records import ledger
from study.storage.files import folder_size, locked
from study.storage.layout import StudyFolder

GRACE_SECONDS = 3600.0
"""A copy that was asked for, or whose last point ended, so lately may still be needed."""


@dataclass(frozen=True)
class Copy:
    """A copy, or what a killed process left of one: its version, its folder, its size [bytes], why it is kept."""

    version: str
    folder: Path
    bytes: int
    kept: str = ""


def copies(runs: Path, now: float) -> list[Copy]:
    """Return the copies beside the studies of a folder, each with why it is kept, if it is."""
    shelf = runs.absolute() / SHELF
    if not shelf.is_dir():
        return []
    wanted = dict(_wanted(runs, now))
    found = []
    for folder in sorted(filter(is_ours, shelf.iterdir())):
        why = wanted.get(folder.name, "")
        named = not folder.name.startswith(STAGING) and is_whole(folder)
        if named and now - (folder / MARKER).stat().st_mtime < GRACE_SECONDS:
            why = why or "it was requested a moment ago"
        found.append(Copy(folder.name, folder, folder_size(folder), why))
    return found


def collect(runs: Path, now: float, really: bool) -> list[Copy]:
    """Remove the copies that nothing needs, or say with `really` False which those are; return all that were there.

    Raises ValueError while another process copies.
    """
    shelf = runs.absolute() / SHELF
    if not shelf.is_dir():
        return []
    try:
        with locked(shelf / "lock", 1.0):
            found = copies(runs, now)
            for one in found:
                if really and not one.kept:
                    away = one.folder
                    if not away.name.startswith(STAGING):
                        away = away.rename(away.with_name(f"{STAGING}{away.name}"))
                    remove_copy(away)
    except TimeoutError:
        raise ValueError(f"{shelf}: another process is copying code: run the command again in a moment") from None
    return found


def _wanted(runs: Path, now: float) -> Iterator[tuple[str, str]]:
    """Yield the versions whose copies studies of this folder may still start jobs from, with why."""
    for path in runs.glob("*/ledger.jsonl"):
        with suppress(OSError):
            said = path.read_bytes()
            if b'"code":"frozen"' not in said and b'"event":"code"' not in said:
                continue
            folder = StudyFolder(path.parent)
            late = now - path.stat().st_mtime < GRACE_SECONDS
            for version in _needs(folder, ledger.read(folder), now, late):
                yield version, f"study {folder.name} needs it"


def _needs(folder: StudyFolder, known: ledger.Ledger, now: float, late: bool) -> Iterator[str]:
    """Yield the versions that a study needs: of what waits, and of jobs that may run or be started again.

    late: something was submitted, ended or cancelled so lately that its jobs may still run.
    """
    if known.code is not None and (late or _goes_on(folder)):
        yield known.code
    for asked in known.waiting.values():
        if asked.resources.get("code") == "frozen" and asked.code is not None:
            yield asked.code
    for batch in known.batches.values():
        if batch.resources.get("code") != "frozen" or batch.code is None:
            continue
        its = [] if batch.of_search else [key for key in batch.keys if known.current.get(key) == batch.name]
        open_ = any(not _is_over(folder, known, key, now) for key in its)
        if late or open_ or (batch.of_search and _goes_on(folder)):
            yield batch.code


def _is_over(folder: StudyFolder, known: ledger.Ledger, key: str, now: float) -> bool:
    try:
        return now - folder.run(key).outcome.stat().st_mtime >= GRACE_SECONDS
    except OSError:
        return key in known.cancelled


def _goes_on(folder: StudyFolder) -> bool:
    """Whether a search may still hand out units."""
    if not folder.search.exists():
        return False
    from study.search.trial_queue import TrialQueue

    return not TrialQueue.of(folder).search.over
