"""Reading a study's own files as they grow: points, ledger, config, report; and asking SLURM now and then."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from study.records.ledger import Ledger
from study.records.point import Point
from study.search.labels import Labels
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from study.tracking.fit_file import read_fit

REPORT_KINDS = frozenset({".html", ".json", ".png", ".svg", ".pdf", ".csv"})
REPORT_PAGE = "report.html"
LOOK_SECONDS = 60.0
"""Time between questions to SLURM: the syncer follows the files, the scheduler only says how the killed ones ended."""


class Source:
    """The study's files, read again only where they have changed, and what `observer` sees of its points."""

    def __init__(self, folder: StudyFolder, observer: Observer | None = None) -> None:
        self.folder = folder
        self.observer = observer or Observer(folder)
        self._known: Ledger | None = None
        self._asked = float("-inf")
        self._labels = Labels(folder)
        self._fit: tuple[int, Mapping[str, Any] | None] = (0, None)
        self._stamps: dict[Path, tuple[int, int] | None] = {}

    @property
    def points(self) -> Mapping[str, Point]:
        """The study's points."""
        return self.observer.points

    def refresh(self, final: Collection[str]) -> None:
        """Read what has changed, and ask SLURM about the jobs of runs that are not final.

        Raises ValueError, naming the line, for a file that is damaged.
        """
        known = self.observer.known
        changed = [self._changed(self.folder.events), self._changed(self.folder.search)]
        if any(changed) or self._labels.stopping:
            self._labels.refresh()
        if known is not self._known or time.monotonic() - self._asked > LOOK_SECONDS:
            self.observer.refresh(final)
            self._known, self._asked = known, time.monotonic()

    def started(self) -> list[str]:
        """Return the keys whose run folder exists, in the points' order."""
        try:
            with os.scandir(self.folder.path) as found:
                names = {item.name for item in found}
        except FileNotFoundError:
            return []
        return [key for key in self.points if key in names]

    def labels(self, key: str) -> Mapping[str, str]:
        """Return what the study's search says of a point, and which point and tokens it goes on from."""
        parent = self.points[key].parent
        return {**self._labels.of(key), **({"parent": parent} if parent else {})}

    @property
    def search_end(self) -> str | None:
        """How the study's search has ended, "over" or "stopped"; "" while it goes on; None where it is no search."""
        return self._labels.end

    def latest(self) -> tuple[str, str]:
        """Return executor and code version of the latest submission, "" where unknown."""
        batches = list(self.observer.known.batches.values())
        return (batches[-1].executor, str(batches[-1].code or "")) if batches else ("", "")

    def identities(self) -> list[str]:
        """Return the ids that this study may be known by in a store, the best first.

        A study that was removed and run again has another first event, hence another id, and does not mix with the
        old one; a study that was moved keeps it. One that is a copy of another has one of its own.
        """
        own = str(self.folder.path.absolute()).encode() if self.is_copy else b""
        return [hashlib.sha256(line + own).hexdigest()[:12] for line in self._first_lines()]

    @property
    def is_copy(self) -> bool:
        """Whether this is a copy of a study that is there still (study.records.origin)."""
        known = self.observer.known
        return bool(known.elsewhere) or any(batch.elsewhere for batch in known.batches.values())

    def of_original(self) -> list[str]:
        """Return the ids by which a copy would be taken for the study that it is of; none where it is no copy."""
        return [hashlib.sha256(line).hexdigest()[:12] for line in self._first_lines()] if self.is_copy else []

    def _first_lines(self) -> list[bytes]:
        return [line for path in (self.folder.ledger, self.folder.points) if (line := _first_line(path))]

    def files(self, report: Path | None) -> Iterator[tuple[Path, str | None, str]]:
        """Yield the files to show with the study: path, artifact folder, a stamp that changes with the file."""
        root = self._report(report)
        found = [(self.folder.study, "")] if self.folder.study.exists() else []
        for path in sorted(root.rglob("*")) if root.is_dir() else []:
            if path.suffix in REPORT_KINDS and path.is_file() and not path.name.startswith("."):
                found.append((path, f"report/{path.relative_to(root).parent.as_posix()}".removesuffix("/.")))
        for path, folder in found:
            stamp = _stamp(path)
            if stamp is not None:
                yield path, folder or None, f"{stamp[0]}-{stamp[1]}"

    def fit(self, report: Path | None) -> tuple[int, Mapping[str, Any] | None]:
        """Return the report's fit.json and when it was written [unix milliseconds]; 0 and None where there is none."""
        path = self._report(report) / "fit.json"
        stamp = _stamp(path)
        if stamp is None:
            self._fit = (0, None)
        elif self._changed(path):
            self._fit = (stamp[0] // 1_000_000, read_fit(path))
        return self._fit

    def has_report(self, report: Path | None) -> bool:
        """Return whether there is a report for people to read."""
        return (self._report(report) / REPORT_PAGE).is_file()

    def _report(self, report: Path | None) -> Path:
        return report or self.folder.path.absolute().parent.parent / "reports" / self.folder.name

    def _changed(self, path: Path) -> bool:
        stamp = _stamp(path)
        if path in self._stamps and self._stamps[path] == stamp:
            return False
        self._stamps[path] = stamp
        return True


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return b""
    return line if line.endswith(b"\n") else b""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_mtime_ns, status.st_size)
