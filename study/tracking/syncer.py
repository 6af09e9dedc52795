"""Bringing a store up to date with a study's files: one pass, exactly once, whatever happened before."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from study.config.tracking_uri import identity
from study.records.point import Point
from study.status.observer import Observer
from study.status.states import PointState
from study.storage.files import locked
from study.storage.layout import StudyFolder
from study.storage.secrets import Redact, redactor
from study.tracking import run_totals, study_params
from study.tracking import state as memory
from study.tracking.all_sent import unsent
from study.tracking.facts import Facts, first_start, read_facts
from study.tracking.law import LAW_GROUPS, law_metrics, law_words
from study.tracking.mapping import (
    PARENT,
    RunSummary,
    budget_colours,
    corpora,
    earlier_name,
    identity_tags,
    looks,
    of_search,
    run_name,
    run_summary,
    study_summary,
)
from study.tracking.metrics_reader import Value
from study.tracking.mlflow_view import NOTE, experiment_tags, may_replace
from study.tracking.shipping import Shipper
from study.tracking.source import Source
from study.tracking.state import RunState, StoreState, TrackingState
from study.tracking.store import RunGoneError, RunRefusedError, Store, StoreAwayError, TrackedRun
from study.tracking.study_note import Study, headline, note, row
from study.tracking.study_note import totals as study_totals

FAILURES = 3
"""Runs in a row at which a store fails before a pass is given up."""
SAVE_SECONDS = 2.0
"""Time between writings of the state file: what a kill costs is sending this much again."""


@dataclass(frozen=True)
class Synced:
    """What one pass did.

    points: of the study. started: those with a run. created: runs made in the store. values: sent, of records' metrics.
    calls: everything that was written, in calls. unreadable: lines passed over. refused: runs that the store did not
    take, and why.
    """

    points: int = 0
    started: int = 0
    created: int = 0
    values: int = 0
    calls: int = 0
    unreadable: int = 0
    refused: tuple[str, ...] = ()


def open_syncer(folder: StudyFolder, uri: str, report: Path | None = None) -> Syncer:
    """Return a syncer of the study to the store at an absolute address.

    Raises ValueError where there is no such study, StoreAwayError where the store cannot be opened.
    """
    from study.tracking.mlflow_store import connect

    if not folder.points.exists():
        raise ValueError(f"no study at {folder.path}: {folder.points} does not exist; give the folder runs/<study>")
    redact = redactor(os.environ)
    return Syncer(folder, connect(uri, folder.name, Path.cwd(), redact), identity(uri), redact, report)


class Syncer:
    """Syncs one study to one store. Only the holder of the study's tracking lock writes."""

    def __init__(
        self,
        folder: StudyFolder,
        store: Store,
        name: str,
        redact: Redact,
        report: Path | None = None,
        *,
        observer: Observer | None = None,  # which has read the study's points already
    ) -> None:
        self._folder, self._store, self._name, self._redact, self._report = folder, store, name, redact, report
        self.steps = 0  # forward, of all runs together: whoever follows tells a server that fails now and then by them
        self._source = Source(folder, observer)
        self._token = uuid.uuid4().hex
        self._state = TrackingState()
        self._stamp: tuple[int, int, int] | None = None
        self._saved = 0.0
        self._dirty = False
        self._verified = False  # the store holds the study's own run that the state names
        self._trusted = False  # the store holds no run of the study that the state does not name
        self._sure: set[str] = set()  # runs of which the state says all that was sent
        self._refused: dict[str, str] = {}
        self._read: set[tuple[str, str]] = set()  # the study's own run, and a corpus that the store has of it
        self._states: dict[str, str] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._colours: Mapping[float, str] = {}
        self._looks: dict[str, Mapping[str, str]] = {}
        self._described: tuple[int, str | None] = (-1, None)  # points, end of a search: told of both by `_describe`
        self._noted = (-1, 0, "")  # time of the fit, steps, and states that the study's own run shows

    def sync(self, wait: float = -1) -> Synced:
        """Make one pass, waiting `wait` seconds for another syncer's pass to end (-1: for ever), then TimeoutError.

        Raises StoreAwayError; what was written until then is kept and is not written again.
        """
        with self._writing(wait):
            self._source.refresh(
                {key for key, state in self._states.items() if state in (PointState.COMPLETED, PointState.DIVERGED)}
            )
            if not self._source.identities():
                return Synced()
            target = self._target()
            shipper = Shipper(self._store, self._redact)
            self._describe(target)
            created = self._sync_runs(target, shipper)
            try:
                self._sync_parent(target, shipper)
            except (RunGoneError, RunRefusedError) as error:  # removed meanwhile: the next pass looks and makes it anew
                self._verified = False
                raise StoreAwayError(f"the study's own run cannot be written: {error}") from None
            return Synced(
                points=len(self._source.points),
                started=len(self._states),
                created=created,
                values=shipper.values,
                calls=shipper.calls,
                unreadable=shipper.unreadable,
                refused=tuple(f"{key}: {why}" for key, why in self._refused.items()),
            )

    @contextmanager
    def _writing(self, wait: float) -> Iterator[None]:
        """Hold the lock; take the state over if another syncer has had it; leave it on disk as it is in memory."""
        with locked(self._folder.tracking_lock, timeout=wait):
            if self._stamp is None or self._stamp != _stamp(self._folder.tracking):
                self._state = memory.load(self._folder.tracking)
                if self._state.study_id in self._source.of_original():  # which goes on with its runs
                    self._state = TrackingState()
                self._state.owner = self._token
                self._trusted = self._verified = False
                self._sure.clear()
                self._save()
            complete = False
            try:
                yield
                complete = True
            finally:
                if not complete:  # nobody knows whether the last request reached the store: look before the next
                    self._trusted = self._verified = False
                    self._sure.clear()
                if self._dirty:
                    self._save()

    def _target(self) -> StoreState:
        """Return the state of this store, with its experiment and the study's own run, found or made."""
        target = self._state.stores.get(self._name)
        if target is not None and (self._verified or self._store.alive(target.parent, self._state.study_id)):
            self._verified = True
            return target
        target = StoreState(experiment=self._store.experiment(self._folder.name))
        candidates = [self._state.study_id] if self._state.study_id else self._source.identities()
        study_id = candidates[0]
        for candidate in candidates:
            found = self._store.find(target.experiment, candidate, "study")
            for spare in found[1:]:
                self._store.delete(spare.id)
            if found:
                study_id, target.parent = candidate, found[0].id
                break
        if not target.parent:
            tags = identity_tags(study_id, None, None, _user())
            started = first_start(self._folder, self._source.started())
            target.parent = self._store.create(target.experiment, self._folder.name, started, tags)
        self._state.study_id = study_id
        self._state.stores[self._name] = target
        self._trusted, self._verified, self._dirty = False, True, True
        return target

    def _describe(self, target: StoreState) -> None:
        """Tell the experiment how to show the study, and the study's own run its parameters: both follow the points."""
        known = (len(self._source.points), self._source.search_end)
        if target.shown and self._described == known:
            return
        points = list(self._source.points.values())
        budgets = ((point.raw.get("budget") or {}).get("flops") for point in points)
        self._colours = budget_colours(budget for budget in budgets if budget is not None)
        self._looks.clear()
        longest = max((len(run_name(point, self._redact)) for point in points), default=0)
        swept, search = study_params.apart(points), self._source.search_end is not None
        tags = experiment_tags(self._folder.name, swept, search=search, longest=longest)
        digest = hashlib.sha256(json.dumps(tags).encode()).hexdigest()[:16]
        try:
            if target.shown != digest:
                self._store.describe(target.experiment, tags)
                target.shown, self._dirty = digest, True
            self._dirty |= study_params.send(self._store, target, points, swept, self._redact, search=known[1])
        except (RunGoneError, RunRefusedError) as error:  # the study's own run was removed: the next pass looks
            self._verified = False
            raise StoreAwayError(f"the experiment cannot be described: {error}") from None
        self._described = known

    def _sync_runs(self, target: StoreState, shipper: Shipper) -> int:
        """Bring every run up to date; return how many runs were made. StoreAwayError, in the end, where one failed.

        A server that fails at one run may take the others: only after several failures in a row is it away.
        """
        created, in_a_row = 0, 0
        trouble: StoreAwayError | None = None
        for key in self._source.started():
            try:
                created += self._sync_run(target, key, shipper)
                in_a_row = 0
            except StoreAwayError as error:
                trouble, in_a_row = trouble or error, in_a_row + 1
                self._sure.discard(key)
                self._trusted = False  # nobody knows whether the run was made
                if in_a_row == FAILURES:
                    break
        if trouble is not None:
            raise trouble
        return created

    def _sync_run(self, target: StoreState, key: str, shipper: Shipper) -> int:
        """Bring one run up to date; return how many runs were made for it."""
        known = target.runs.get(key)
        labels = self._source.labels(key)
        if known is not None and known.done and self._labels.get(key, {}) == labels:
            self._states[key] = known.state
            return 0
        facts = read_facts(self._source.observer, key)
        if facts is None:
            return 0
        facts = of_search(facts, labels.get("verdict", ""), self._source.search_end or "")
        self._states[key] = facts.state
        if key in self._refused:
            return 0
        self._labels[key] = labels
        summary = run_summary(facts, *self._source.latest(), self._redact, labels)
        point = self._source.points[key]
        if key not in self._looks:
            self._looks[key] = looks(point, self._colours)
        # A parent that was removed is made anew: its runs follow it.
        summary = replace(summary, tags={**summary.tags, **self._looks[key], PARENT: target.parent})
        try:
            try:
                return self._ship(target, point, facts, summary, shipper)
            except RunGoneError:  # removed from the store: made anew, once
                target.runs.pop(key, None)
                self._trusted = False
                self._sure.discard(key)
                return self._ship(target, point, facts, summary, shipper)
        except (RunGoneError, RunRefusedError) as error:
            self._refused[key] = str(error)
            return 0

    def _ship(self, target: StoreState, point: Point, facts: Facts, summary: RunSummary, shipper: Shipper) -> int:
        created = self._find_or_create(target, point, facts, summary)
        totals = partial(run_totals.totals, self._folder, self._source.observer.known, point, facts)
        run, sure = self._folder.run(point.key), bool(created) or point.key in self._sure
        begun = target.runs[point.key]
        shipped = shipper.ship(
            run, begun, point, facts, summary, totals=totals, experiment=target.experiment, sure=sure
        )
        for progress in shipped:
            if progress != target.runs[point.key]:
                self._dirty = True
                self.steps += 1
            target.runs[point.key] = progress
            if self._dirty and time.monotonic() - self._saved > SAVE_SECONDS:
                self._save()
        self._sure.add(point.key)
        return created

    def _find_or_create(self, target: StoreState, point: Point, facts: Facts, summary: RunSummary) -> int:
        if point.key not in target.runs and not self._trusted:
            self._discover(target)
        if point.key in target.runs:
            return 0
        tags = identity_tags(self._state.study_id, target.parent, point.key, _user())
        early = {name: value for name, value in summary.tags.items() if value and name not in ("state", "outcome")}
        name = run_name(point, self._redact)
        run = self._store.create(target.experiment, name, facts.started, {**early, **tags})
        target.runs[point.key] = RunState(run, error="error" in early)
        self._dirty = True
        return 1

    def _discover(self, target: StoreState) -> None:
        """Ask the store which runs of this study it holds; of several for one point the known or oldest one stays."""
        found = self._store.find(target.experiment, self._state.study_id, "run")
        ids = {run.id for run in found}
        target.runs = {key: run for key, run in target.runs.items() if run.id in ids}
        for run in found:
            if target.runs.setdefault(run.key, RunState(run.id)).id != run.id:
                self._store.delete(run.id)
            elif run.key in self._source.points:
                self._rename(run, self._source.points[run.key])
        self._trusted = self._dirty = True

    def _rename(self, run: TrackedRun, point: Point) -> None:
        """Give a run that has the name of an earlier version that of this one; what a person named it stays."""
        name = run_name(point, self._redact)
        if run.name == earlier_name(point, self._redact) != name:
            self._store.rename(run.id, name)

    def _sync_parent(self, target: StoreState, shipper: Shipper) -> None:
        """Bring the study's own run up to date: points by state, the study's config, the report."""
        pending = len(self._source.points) - len(self._states)
        states, end = list(self._states.values()), self._source.search_end
        summary = study_summary(states, pending, *self._source.latest(), self._redact, search=end, ended=target.ended)
        if target.parent_sent != summary.digest():
            self._store.log(target.parent, [], tags=summary.tags)
            self._store.status(target.parent, summary.status, summary.ended)
            target.parent_sent = summary.digest()
            self._dirty = True
        self._sync_note(target, summary)
        for path, folder, name, stamp in unsent(target, self._source, self._report):
            shipper.artifact(target.parent, path, folder)
            target.files[name] = stamp
            self._dirty = True

    def _sync_note(self, target: StoreState, summary: RunSummary) -> None:
        """Bring the law, the totals and the description of the study's own run up to date."""
        stamp, fit = self._source.fit(self._report)
        report = self._source.has_report(self._report)
        seen = (stamp, self.steps, f"{target.parent_sent} {report}")
        if target.noted and self._noted == seen:
            return
        rows = [
            row(point, run_name(point, self._redact), known.id, known.totals, known.state)
            for point in self._source.points.values()
            if (known := target.runs.get(point.key)) is not None
        ]
        made = corpora((point.raw for point in self._source.points.values()), self._redact), self._source.latest()[1]
        study = Study(target.experiment, target.parent, rows, summary.tags.get("states", ""), fit, report, *made)
        whole = study_totals(rows)
        values = [Value(name, value, target.ended, 0) for name, value in whole.items()]
        values += [Value(name, value, stamp, 0) for name, value in law_metrics(fit or {}).items()]
        text, line = self._redact(note(study)), headline(study)  # "viewStateShareKey=" in its links looks like a secret
        tags = {name: self._redact(word) for name, word in law_words(fit or {}).items()}
        digest = hashlib.sha256(json.dumps([values, text, line, tags]).encode()).hexdigest()[:16]
        if digest != target.noted:
            held = self._store.held(target.parent)
            stale = [name for name in held.steps if name.startswith(LAW_GROUPS)]  # of an earlier fit, which knew more
            values += [Value(name, math.nan, stamp, 0) for name in set(stale) - {value.name for value in values}]
            self._store.log(target.parent, values, tags=tags | ({NOTE: text} if may_replace(held.note) else {}))
            self._store.describe(target.experiment, {NOTE: line})
            for read in made[0]:
                if (target.parent, read.digest) not in self._read:  # said once more by another process: no harm
                    self._store.dataset(target.parent, read)
                    self._read.add((target.parent, read.digest))
            target.noted, self._dirty = digest, True
        self._noted = seen

    def _save(self) -> None:
        memory.save(self._folder.tracking, self._state)
        self._stamp = _stamp(self._folder.tracking)
        self._saved = time.monotonic()
        self._dirty = False


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
