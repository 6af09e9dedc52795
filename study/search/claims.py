"""Claiming units and telling what came of them: a worker's transactions on the event log, each under its lock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from study.compose import check
from study.files import locked
from study.freeze import append_points, seal, settle
from study.layout import StudyFolder
from study.point import Point
from study.search.log import EventLog, Record
from study.search.settings import Settings, load
from study.search.state import Claim, Search, ended, reported, started
from sweeps.events import Config, Unit
from train.spec.counts import flops_per_token

BEATS = 4
"""How often a lease is renewed while it lasts."""


@dataclass
class Office:
    """A study's search as one process sees it: its settings, its log, and the state that the log adds up to."""

    folder: StudyFolder
    settings: Settings
    log: EventLog
    search: Search
    _points: dict[int, Point] = field(default_factory=dict)
    _stamp: int = 0

    @classmethod
    def of(cls, folder: StudyFolder) -> Self:
        """Return the search of a study; ValueError where it has none."""
        settings = load(folder)
        if settings is None:
            raise ValueError(f"{folder.search} does not exist: this study is no search")
        office = cls(folder, settings, EventLog(folder.events), Search(settings))
        office.refresh()
        return office

    def refresh(self) -> None:
        """Take in what other processes have written."""
        for record in self.log.read():
            self.search.apply(record)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the log's lock, with the state up to date."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with locked(self.folder.events_lock):
            self._see_settings()
            self.refresh()
            yield

    def _see_settings(self) -> None:
        """Read the settings again if their file was replaced: more trials or more budget were allowed."""
        stamp = self.folder.search.stat().st_mtime_ns
        if stamp != self._stamp:
            fresh = load(self.folder)
            assert fresh is not None
            self._stamp = stamp
            if fresh != self.settings:
                self.settings, self.search, self.log = fresh, Search(fresh), EventLog(self.folder.events)

    def claim(self, worker: str) -> Claim | None:
        """Return a unit to advance, None where there is none now; settles leases that have run out first."""
        with self.transaction():
            self._settle_lost(time.time())
            unit = self.search.decide()
            if unit is None:
                return None
            point, cost = self.point(unit)
            if unit.trial not in self.search.trials and not self.search.affordable(unit, cost):
                return None
            if unit.trial not in self.search.trials:
                append_points(self.folder, [point], {trial.key for trial in self.search.trials.values()})
            record = started(unit, point.key, worker, cost, time.time())
            number = len(self.log.records)
            # The lease comes first: a claim without one would look as if its worker had died.
            renew(self.folder, number)
            self._append(record)
            return self.search.claims[number]

    def tell(self, claim: Claim, how: str, why: str = "", value: float | None = None) -> bool:
        """Write down how a unit ended, with its value where it was reached; False if the claim was given up since."""
        with self.transaction():
            current = self.search.is_current(claim.number, claim.unit.trial)
            if current:
                now = time.time()
                told = [] if value is None else [reported(claim, claim.unit.until, value, now)]
                self._append(*told, ended(claim, how, why, now))
        (self.folder.leases / str(claim.number)).unlink(missing_ok=True)
        return current

    def say(self, event: str) -> None:
        """Append an event of the user's: "stopped" hands nothing out any more, "resumed" does again."""
        with self.transaction():
            if self.search.stopped != (event == "stopped"):
                self._append({"event": event, "time": round(time.time(), 3)})

    def point(self, unit: Unit) -> tuple[Point, float]:
        """Return the frozen point of a unit's trial, and what one of its tokens costs [FLOPs per token]."""
        known = self.search.trials.get(unit.trial)
        config = unit.config if unit.config is not None else None if known is None else known.config
        assert config is not None, "a new trial's unit has its config"
        if unit.trial not in self._points:
            self._points[unit.trial] = frozen(self.settings, config)
        point = self._points[unit.trial]
        run = point.config
        return point, float(flops_per_token(run.model, run.data.vocab_size, run.data.sequence_length))

    def _append(self, *records: Record) -> None:
        self.log.append(records)
        for record in records:
            self.search.apply(record)

    def _settle_lost(self, now: float) -> None:
        """Give up the claims whose worker has not renewed its lease: the unit goes to whoever asks next."""
        clock = server_clock(self.folder) if self.search.claims else now
        for claim in list(self.search.claims.values()):
            renewed = lease_time(self.folder, claim.number)
            age = now - claim.time if renewed is None else clock - renewed
            if age > self.settings.lease:
                self._append(ended(claim, "lost", f"its worker {claim.worker} was silent for {age:.0f} s", now))
                (self.folder.leases / str(claim.number)).unlink(missing_ok=True)


class Lease:
    """Renews a claim's lease while the block runs, by a timer: a thread would make it unsafe to start processes."""

    def __init__(self, folder: StudyFolder, claim: Claim, seconds: float) -> None:
        self._folder, self._claim, self._every = folder, claim, seconds / BEATS

    def __enter__(self) -> Self:
        signal.signal(signal.SIGALRM, self._beat)
        signal.setitimer(signal.ITIMER_REAL, self._every, self._every)
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _beat(self, number: int, frame: FrameType | None) -> None:
        try:
            renew(self._folder, self._claim.number)
        except OSError as error:  # a full disk or an absent server; the next beat may work
            print(f"lease {self._claim.number} not renewed: {error}", flush=True)


def renew(folder: StudyFolder, number: int) -> None:
    """Write a lease's file, so that the file server stamps it with its own time."""
    folder.leases.mkdir(parents=True, exist_ok=True)
    (folder.leases / str(number)).write_text(f"{os.uname().nodename} {os.getpid()}\n", encoding="utf-8")


def lease_time(folder: StudyFolder, number: int) -> float | None:
    """Return when a lease was last renewed, by the file server's clock; None where there is none."""
    try:
        return (folder.leases / str(number)).stat().st_mtime
    except OSError:
        return None


def server_clock(folder: StudyFolder) -> float:
    """Return the file server's time: that of a file written now. Nodes' own clocks may differ."""
    folder.leases.mkdir(parents=True, exist_ok=True)
    probe: Path = folder.leases / f".now.{os.uname().nodename}.{os.getpid()}"
    probe.write_text("", encoding="utf-8")
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    return now


def frozen(settings: Settings, config: Config) -> Point:
    """Return the point of a trial: the search's base config, fingerprint and all, with the trial's settings in it."""
    plain: dict[str, Any] = dict(settings.base)
    for key, value in config.items():
        plain = _with(plain, key.split("."), value)
    overrides = tuple(f"{key}={_short(value)}" for key, value in config.items())
    return seal(settle(check(plain), overrides), {}, overrides)


def _with(plain: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**plain, name: value}
    return {**plain, name: _with(plain[name], rest, value)}


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
