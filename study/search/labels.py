"""What a search says of each of its points, in a few words: which rung, which bracket, its state."""

from __future__ import annotations

from collections.abc import Mapping

from study.search import view
from study.search.event_log import EventLog
from study.search.settings import Settings, load
from study.search.state import Search
from study.storage.layout import StudyFolder


class Labels:
    """Follows a search's log and says what its points are labelled with; a study that is no search has no labels."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._settings: Settings | None = None
        self._log = EventLog(folder.events)
        self._search: Search | None = None
        self._trial: dict[str, int] = {}
        self.end: str | None = None
        """How the search has ended, "over" or "stopped"; "" while it goes on; None where the study is no search."""

    def refresh(self) -> None:
        """Take in what has been logged since the last time. ValueError where the log is damaged."""
        settings = load(self._folder)
        if settings is None:
            return
        if settings != self._settings or self._search is None:
            self._settings, self._log, self._search, self._trial = settings, EventLog(self._folder.events), None, {}
            self._search = Search(settings)
        for record in self._log.follow(self._search.apply):
            if record["event"] == "started":
                self._trial[record["key"]] = record["trial"]
        self.end = self._ended(self._search)

    @property
    def stopping(self) -> bool:
        """Whether the search was stopped while units were held: one whose worker is dead ends without a record."""
        return self._search is not None and self._search.stopped and bool(self._search.claims)

    def _ended(self, search: Search) -> str:
        if search.stopped and not search.claims:
            return "stopped"
        if search.claims and not search.stopped:
            return ""
        from study.search.trial_queue import TrialQueue  # it knows leases, and what the next trial would cost

        try:
            if search.stopped:
                search.silent = TrialQueue.of(self._folder).note_silent().search.silent
                return "" if search.running else "stopped"
            return "over" if TrialQueue.of(self._folder).search.over else ""
        except ValueError:  # of another version: whoever advances it says what is wrong
            return ""

    def of(self, key: str) -> Mapping[str, str]:
        """Return the labels of a point: trial, rung (tokens reached), bracket, verdict; empty for another study's."""
        if self._search is None or key not in self._trial:
            return {}
        trial = self._search.trials[self._trial[key]]
        current = trial.key == key
        return {
            "trial": str(trial.number),
            "bracket": str(trial.bracket),
            "rung": str(trial.at) if current else "",
            "verdict": view.verdict(self._search, trial) if current else view.TrialState.REPLACED,
        }
