"""Where a study is sent, and whether all of it was: by its files alone, the store is not asked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from study.config.tracking_uri import DEFAULT, identity, resolve, sqlite_file
from study.executors.jobs import QueueView
from study.records.settings import load_section
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from study.storage.secrets import redactor
from study.tracking import state as memory
from study.tracking.mapping import study_summary
from study.tracking.source import Source
from study.tracking.state import StoreState


def address(folder: StudyFolder) -> str | None:
    """Return the absolute address of a study's store; None where its tracking is off. ValueError for none of ours."""
    section = load_section(folder, "tracking")
    if section.get("enabled") is False:
        return None
    outside = os.environ.get("MLFLOW_TRACKING_URI")
    uri = resolve(section.get("uri") or outside or DEFAULT, Path.cwd())
    # A study's files hold no credentials: those of its store may be in the environment's address of the same one.
    return outside if outside and identity(outside) == identity(uri) else uri


def is_all_sent(folder: StudyFolder) -> bool:
    """Whether every point has reached its outcome and all that a study shows was sent, as far as its files know.

    What was removed from the store since is not seen: only asking the store, as `sync` does, can tell. A search is
    never said to be sent, for it may make points yet.
    """
    try:
        uri = address(folder)
        if uri is None or folder.search.exists():
            return False
        target = memory.load(folder.tracking).stores.get(identity(uri))
        database = sqlite_file(uri)
        if target is None or not (target.shown and target.noted) or (database is not None and not database.exists()):
            return False
        source = Source(folder, Observer(folder, lambda batches: QueueView()))
        source.refresh(())
    except ValueError:  # whoever sends says what is wrong
        return False
    if not source.points or source.started() != list(source.points):
        return False
    if not all(key in target.runs and target.runs[key].done for key in source.points):
        return False
    states = [target.runs[key].state for key in source.points]
    summary = study_summary(states, 0, *source.latest(), redactor(os.environ), ended=target.ended)
    return target.parent_sent == summary.digest() and not any(unsent(target, source, None))


def lacks_report(folder: StudyFolder) -> bool:
    """Whether its store lacks a file of a study's report, or its config, as it is now, as far as its files know."""
    uri = address(folder)
    if uri is None:
        return False
    target = memory.load(folder.tracking).stores.get(identity(uri))
    source = Source(folder, Observer(folder, lambda batches: QueueView()))
    return target is None or any(unsent(target, source, None))


def unsent(target: StoreState, source: Source, report: Path | None) -> Iterator[tuple[Path, str | None, str, str]]:
    """Yield the study's files that the store does not have as they are: path, folder and name there, stamp.

    A stamp has a file's time and size, and its content: a file that is written anew as it was need not be sent again.
    DVC does so to what its stages make.
    """
    for path, folder, seen in source.files(report):
        name = f"{folder or ''}/{path.name}"
        known = target.files.get(name, "")
        if known == seen or known.startswith(f"{seen}-"):
            continue
        stamp = f"{seen}-{_digest(path)}"
        if known.split("-")[2:] != stamp.split("-")[2:]:
            yield path, folder, name, stamp


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""  # whoever sends it says what is wrong
