"""What MLflow has been sent, by a study's own files: no store is asked, and nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from study.executors.query import View
from study.layout import StudyFolder
from study.submission import load_section
from study.tracking import state as memory
from study.tracking.project import study_card
from study.tracking.redact import redactor
from study.tracking.source import Source
from study.tracking.state import StoreState
from study.tracking.uri import DEFAULT, identity, resolve, sqlite_file


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
        if target is None or (database is not None and not database.exists()):
            return False
        source = Source(folder, lambda jobs: View())
        source.refresh(())
    except ValueError:  # whoever sends says what is wrong
        return False
    if not source.points or source.started() != list(source.points):
        return False
    if not all(key in target.runs and target.runs[key].done for key in source.points):
        return False
    card = study_card([target.runs[key].state for key in source.points], 0, *source.latest(), redactor(os.environ))
    return target.parent_sent == card.digest() and not any(unsent(target, source, None))


def unsent(target: StoreState, source: Source, report: Path | None) -> Iterator[tuple[Path, str | None, str, str]]:
    """Yield the study's files that the store does not have as they are: path, folder and name there, stamp."""
    for path, folder, stamp in source.files(report):
        name = f"{folder or ''}/{path.name}"
        if target.files.get(name) != stamp:
            yield path, folder, name, stamp
