"""Claiming units and recording their ends: a worker's transactions on the event log, each under its lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from study.config.compose import check
from study.config.schema import StudyConfig
from study.failures.kinds import Kind
from study.failures.retry_policy import Verdict, unit_verdict
from study.records.checkpoints import reached
from study.records.point import Point
from study.records.points import append_points
from study.records.settings import load_submission
from study.search.event_log import EventLog, Record
from study.search.leases import BEATS, lease_time, renew, server_clock
from study.search.retry import GONE
from study.search.settings import Settings, load
from study.search.state import Claim, Search, ended, reported, started
from study.search.trial_point import trial_point
from study.storage.files import locked
from study.storage.layout import StudyFolder
from sweeps.history import Config, Unit
from sweeps.schedulers import Compares
from train.spec.counts import flops_per_token
from train.spec.later import filled

JOB = "job:"
"""How the name of a worker begins that is a job of its own, submitted for one unit."""


@dataclass
class TrialQueue:
    """A study's search as one process sees it: its settings, its log, and the state that the log adds up to."""

    folder: StudyFolder
    settings: Settings
    log: EventLog
    search: Search
    _latest: tuple[tuple[Config, str | None], Point] | None = None
    _base: tuple[Settings, StudyConfig] | None = None
    _stamp: int = 0
    _holds: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.search.price = lambda unit: self.point_of(unit)[2]

    @classmethod
    def of(cls, folder: StudyFolder) -> Self:
        """Return the search of a study; ValueError where it has none."""
        settings = load(folder)
        if settings is None:
            raise ValueError(f"{folder.name} is not a search: its points are a fixed list, so it has no trials")
        opened = cls(folder, settings, EventLog(folder.events), Search(settings))
        opened.refresh()
        return opened

    def refresh(self) -> None:
        """Take in what other processes have written."""
        for _ in self.log.follow(self.search.apply):
            pass

    def warm_up(self) -> None:
        """Decide once without the lock, so that the first decision under it imports and reads nothing more."""
        self.search.decide()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the log's lock, with the state up to date."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with locked(self.folder.events_lock) as self._holds:
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
                self.__post_init__()

    def claim(self, worker: str, lease: bool = True) -> Claim | None:
        """Return a unit to advance, None where there is none now; claims with expired leases are given up first.

        `lease`: write a lease, which the worker renews; False: the unit's job is followed through SLURM instead.
        """
        with self.transaction():
            self.expire(time.time())
            unit = self.search.decide()
            if unit is None:
                return None
            key, new, cost = self.point_of(unit)
            if new is not None:
                append_points(self.folder, [new], self.search.keys)
            reserved = self.search.reservation(unit, cost)
            record = started(unit, key, worker, cost, time.time(), reserved=reserved)
            number = len(self.log.records)
            # The lease comes first: a claim without one would look as if its worker had died.
            if lease:
                renew(self.folder, number)
            self._append(record)
            return self.search.claims[number]

    def record_end(
        self,
        claim: Claim,
        how: str,
        why: str = "",
        value: float | None = None,
        *,
        tokens: int | None = None,
        seconds: float | None = None,
        training: float | None = None,
        marks: Mapping[str, bool] | None = None,
        kind: Kind = Kind.NONE,
    ) -> bool:
        """Write down how a unit ended, with its value where it was reached; False if the claim was given up since.

        tokens: where the run stood at its value. seconds, training: see :func:`study.search.state.ended`. marks:
        `limited`: it used up the device time that was set aside for it; `warm`: its trainer was there already. kind: of
        a bad end (study.failures.kinds).
        """
        with self.transaction():
            current = self.search.is_current(claim.number, claim.unit.trial)
            if current:
                now = time.time()
                told = [] if value is None else [reported(claim, claim.unit.until, value, now, tokens)]
                end = {**ended(claim, how, why, now, seconds=seconds, training=training), **self._bad(claim, kind)}
                self._append(*told, {**end, **{name: True for name, holds in (marks or {}).items() if holds}})
        (self.folder.leases / str(claim.number)).unlink(missing_ok=True)
        return current

    def enqueue(self, points: Sequence[Config]) -> int:
        """Write down points to be tried before any other; return how many the search did not have yet.

        ValueError where none would ever be tried: all members of a population have begun.
        """
        with self.transaction():
            new = [point for point in points if point not in self.search.queue]
            members = len(self.search.trials)
            if new and self.settings.compares is Compares.WITH_MEMBERS and members >= self.settings.trials:
                shown = " ".join(f"{name}={value}" for name, value in new[0].items())
                raise ValueError(
                    f"{self.folder.name}: {shown} would never be tried: all {members} members of the population have "
                    "begun, and no other joins them; give it to a new study with search.enqueue"
                )
            now = round(time.time(), 3)
            self._append(*({"event": "enqueued", "time": now, "config": dict(point)} for point in new))
        return len(new)

    def record_control(self, event: str, why: str = "") -> None:
        """Append an event of the user's: after "stopped" no units are handed out until "resumed"."""
        with self.transaction():
            if self.search.stopped != (event == "stopped"):
                self._append({"event": event, "time": round(time.time(), 3), **({"why": why} if why else {})})

    def verdict(self, claim: Claim, kind: Kind) -> Verdict:
        """Return the retry policy's verdict on an end of this kind of a claim's unit."""
        rules = load_submission(self.folder).retry.rules()
        ends = self.search.trials[claim.unit.trial].ends
        return unit_verdict(kind, ends, rules, reached(self.folder.run(claim.key)))

    def point_of(self, unit: Unit) -> tuple[str, Point | None, float]:
        """Return the key of a unit's point, the point itself where it is new, and what a token costs it [FLOPs]."""
        if self.search.is_begun(unit):
            trial = self.search.trials[unit.trial]
            return trial.key, None, trial.flops_per_token
        assert unit.config is not None, "a new point has its config"
        origin = None if unit.parent is None else self.search.origin(unit.parent)
        if self._latest is None or self._latest[0] != (unit.config, origin):
            self._latest = (unit.config, origin), trial_point(self.settings, unit.config, origin, self._read_base())
        point = self._latest[1]
        run = point.config
        return point.key, point, float(flops_per_token(run.model, run.data.vocab_size, run.data.sequence_length))

    def _read_base(self) -> StudyConfig:
        if self._base is None or self._base[0] is not self.settings:
            self._base = self.settings, check(filled(self.settings.base))
        return self._base[1]

    def _append(self, *records: Record) -> None:
        if not self._holds():
            raise TimeoutError(f"{self.folder.events_lock}: the lock expired: this process was suspended for too long")
        self.log.append(records)
        for record in records:
            self.search.apply(record)

    def expire(self, now: float) -> None:
        """Give up the claims whose lease has expired: the next worker that asks gets the unit."""
        for claim, age, renewed in self._silent(now):
            # It died before its next beat was due, and its trainer with it.
            lived = self.settings.lease / BEATS + (0.0 if renewed is None else max(0.0, renewed - claim.time))
            self.give_up(claim, f"its worker {claim.worker} was silent for {age:.0f} s", lived)
            (self.folder.leases / str(claim.number)).unlink(missing_ok=True)

    def note_silent(self) -> Self:
        """Note which leases have expired, for a display: their units are given up when a worker next claims one."""
        with suppress(OSError):  # a folder that may only be read has no clock
            self.search.silent = frozenset(claim.number for claim, _, _ in self._silent(time.time()))
        return self

    def _silent(self, now: float) -> list[tuple[Claim, float, float | None]]:
        """Return the claims whose lease has run out, for how long nothing was heard [s], and when it was renewed."""
        claims = [c for c in self.search.claims.values() if not c.worker.startswith(JOB)]  # of jobs SLURM knows
        clock, found = server_clock(self.folder) if claims else now, []
        for claim in claims:
            renewed = lease_time(self.folder, claim.number)
            age = now - claim.time if renewed is None else clock - renewed
            if age > self.settings.lease:
                found.append((claim, age, renewed))
        return found

    def give_up(self, claim: Claim, why: str, seconds: float, begun: bool = True, kind: Kind = GONE) -> None:
        """Give up a claim of a worker that is gone, `seconds` after it began. Within a transaction.

        A unit whose workers keep dying fails for good once the study's retry policy says so for this kind of failure.
        `begun`: it was advanced at all.
        """
        if claim.reserved is not None:
            seconds = min(seconds, claim.reserved / self.settings.devices)
        if not begun:
            self._append({**ended(claim, "lost", why, time.time(), seconds=seconds), "unbegun": True})
            return
        then = self.verdict(claim, kind)
        how, said = ("failed", f"{then.why}, the last time: {why}") if then.gives_up else ("lost", why)
        self._append({**ended(claim, how, said, time.time(), seconds=seconds), **self._bad(claim, kind)})

    def _bad(self, claim: Claim, kind: Kind) -> Record:
        """Return the fields that a failure adds to a record: its kind, and the tokens of the newest checkpoint."""
        return {"kind": kind, "saved": reached(self.folder.run(claim.key))} if kind else {}
