"""Looking at a study: every point's state from its files and from one look at the scheduler."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study.executors import detached, load, query, submitted
from study.executors.jobs import Job, JobState, QueueView
from study.failures.kinds import HELD, Kind, by_words
from study.failures.retry_policy import ENDED_BADLY, RecordedFailure
from study.failures.words import Words
from study.records import ledger
from study.records.attempts import Attempt, is_alive, read_attempts
from study.records.heartbeats import read_beat, slow_rank
from study.records.last_sign import last_metrics, last_sign
from study.records.lost_rows import LostRows
from study.records.point import Point, point_log
from study.records.shapes import LEFT_TO, QUEUE_NOTE
from study.status.cache import Remembered
from study.status.states import DerivedState, Evidence, PointState, PointStatus, derive_state
from study.storage.files import RunLock, file_size, last_lines
from study.storage.jsonl import Log
from study.storage.layout import RunFolder, StudyFolder
from study.storage.room import is_full
from study.storage.shapes import read_record

NO_WORD = frozenset({Kind.UNKNOWN, Kind.CODE_ERROR, Kind.KILLED})
"""Kinds of ends that a full disk may be behind, where nothing was written of them."""
COMPLETE = (PointState.COMPLETED, PointState.DIVERGED)
HELD_CODE = f"exit code {HELD}:0"
"""sacct's exit code of a job that left its run to another attempt."""
Look = Callable[[Sequence[ledger.Batch]], QueueView]
"""Asks the schedulers about the jobs of these batches."""


@dataclass
class Observer:
    """Observes one study repeatedly; what can no longer change is read once.

    `look` asks the scheduler; its answer is used until :meth:`refresh` is called.
    """

    folder: StudyFolder
    look: Look = query
    view: QueueView = field(default_factory=QueueView)
    _points: dict[str, Point] = field(default_factory=dict)
    _log: Log[Point] | None = None
    _points_size: int = -1
    _ledger: ledger.Ledger = field(default_factory=ledger.Ledger)
    _ledger_size: int = -1
    _names: dict[str, str] = field(default_factory=dict)
    _final: dict[str, PointStatus] = field(default_factory=dict)
    _cache: Remembered | None = None
    _full: bool | None = None
    _lost: LostRows = field(default_factory=LostRows)

    @property
    def points(self) -> dict[str, Point]:
        """The study's points; new ones are read when their file has grown."""
        size = file_size(self.folder.points)
        if size != self._points_size:
            self._log, self._points_size = self._log or point_log(self.folder), size
            for point in self._log.read():
                self._points.setdefault(point.key, point)
        return self._points

    @property
    def known(self) -> ledger.Ledger:
        """The state of the ledger, read again when it has grown."""
        size = file_size(self.folder.ledger)
        if size != self._ledger_size:
            self._ledger, self._ledger_size = ledger.read(self.folder), size
            self._names = _names(self._ledger)
        return self._ledger

    def refresh(self, final: Collection[str] = ()) -> None:
        """Ask the scheduler once about all batches with points that are not known to be final."""
        state = self.known
        self._recall()
        keys = (key for key in self.points if key not in self._final and key not in final)
        names = {state.current[key] for key in keys if key in self._names}
        self.view = self.look([state.batches[name] for name in sorted(names)]) if names else QueueView()

    def statuses(self) -> list[PointStatus]:
        """Return every point's status, from its files as they are now and the scheduler's last view."""
        remembered = self._recall()
        # Asked once for all points: whether the ledger has grown costs as much as what is found out about a point.
        state, self._full = self.known, None
        started, no_room = _subfolders(self.folder.path), self._no_room(state)
        found = [self._status(point, state, no_room, point.key in started) for point in self.points.values()]
        remembered.save()
        return found

    def seen(self, key: str) -> ObservedPoint:
        """Return the evidence on one point and its state, as `status` and MLflow show them."""
        state = self.known
        return self._seen(key, state, self._no_room(state), started=True)

    def _no_room(self, state: ledger.Ledger) -> str:
        """Return why waiting points are not submitted, by the last query of the scheduler."""
        note = read_record(self.folder.queue_note, QUEUE_NOTE) if state.waiting else None
        return str((note or {}).get("why") or "")

    def _seen(self, key: str, state: ledger.Ledger, no_room: str, *, started: bool) -> ObservedPoint:
        name = self._names.get(key, "")
        job = self.view.jobs.get(name)
        if job is not None and (batch := state.batch(key)) is not None:  # it may be another study's that was asked too
            job = job.under((batch.name,), name)
        evidence, outcome = gather(self.folder, key, state, self.view, job, no_room=no_room, started=started)
        return ObservedPoint(evidence, derive_state(evidence), outcome, name)

    def _recall(self) -> Remembered:
        """Return the final states that earlier observers wrote down; the first call takes them over."""
        if self._cache is None:
            self._cache = Remembered.load(self.folder)
            current = self.known.current
            for key in self.points:
                status = self._cache.get(key, current.get(key))
                if status is not None:
                    self._final[key] = status
        return self._cache

    def _status(self, point: Point, state: ledger.Ledger, no_room: str, started: bool) -> PointStatus:
        key, name = point.key, state.current.get(point.key)
        final = self._final.get(key)
        if final is not None and final.batch == name:
            return final
        seen = self._seen(key, state, no_room, started=started)
        status = _describe(point, self.folder, seen.evidence, seen.derived, seen.outcome)
        if (status.attempt or 0) > 1:  # a run notes what it has lost as it resumes
            status = replace(status, missing=self._lost.of(self.folder.run(key), status.attempt))
        if more := _by_scheduler(status.state, seen):
            status = replace(status, **more)
        if status.state in ENDED_BADLY:
            ends = state.ends.get(key)
            if self._found_no_room(status, seen.evidence, ends[-1] if ends else None):
                status = replace(status, kind=Kind.DISK_FULL, headline=f"no space left in {self.folder.path}")
            status = replace(status, next=ends[-1].why) if ends else status
        if status.state in COMPLETE and seen.outcome is not None:
            self._final[key] = status
            self._recall().add(status)
        return status

    def _found_no_room(self, status: PointStatus, seen: Evidence, last: RecordedFailure | None) -> bool:
        """Whether a point ended without a word while the disk it writes to was full, or as it is full now."""
        attempt, batch = seen.attempt, seen.batch
        mine = attempt is not None and batch is not None and attempt.batch == batch.name
        if batch is None or status.kind not in NO_WORD or (mine and attempt is not None and attempt.ended is not None):
            return False
        if last is not None and last.of == (status.batch, status.attempt or 0) and last.kind == Kind.DISK_FULL:
            return True
        if self._full is None:
            self._full = is_full(self.folder.path)
        return self._full


@dataclass(frozen=True)
class ObservedPoint:
    """One point: the evidence, its state, its run's outcome.json, SLURM's name of its job."""

    evidence: Evidence
    derived: DerivedState
    outcome: Mapping[str, Any] | None
    job_name: str = ""


def _by_scheduler(state: PointState, seen: ObservedPoint) -> dict[str, Any]:
    """Return what a status has from the scheduler's view of its job, by field, where that waits or runs."""
    job, batch, name = seen.evidence.job, seen.evidence.batch, seen.job_name
    if job is None or batch is None:
        return {}
    if state == PointState.RUNNING and job.state == JobState.RUNNING:
        return {"job_id": name}  # also before its attempt has begun
    if state != PointState.QUEUED:
        return {}
    executor = load(batch.executor)
    said = {"job_id": name, "executor": executor.name}
    if job.state == JobState.RUNNING:  # it is in its job, for one before it
        return said
    means = executor.explain(job.reason)
    follows = means.help.format(jobs=executor.job_names([name], [name])) if means.help else ""
    return {**said, "why": means.words, "reason": job.reason, "next": follows}


def _names(state: ledger.Ledger) -> dict[str, str]:
    """Return SLURM's name of the current job of every point that has one."""
    found: dict[str, str] = {}
    for batch in submitted(state.batches.values()):
        if not batch.of_search:
            found |= {key: name for key, name in batch.jobs_by_key().items() if state.current.get(key) == batch.name}
    return found


def gather(
    folder: StudyFolder,
    key: str,
    state: ledger.Ledger,
    view: QueueView,
    job: Job | None,
    *,
    no_room: str = "",
    started: bool = True,
) -> tuple[Evidence, dict[str, Any] | None]:
    """Return the evidence on one point, from which its state is derived, and its run's outcome.json at that moment.

    job: SLURM's view of its present job. started: whether it has a folder; without one no file of it is looked for.
    """
    batch, path = state.batch(key), f"{folder.path}/{key}"
    outcome, attempt = read_attempts(path) if started else (None, None)
    alive = None if attempt is None else _is_alive(attempt, state)
    if alive is False:  # it may have written its outcome after its files were read; now it is dead, read them again
        outcome, attempt = read_attempts(path)
    owned = None
    if started and outcome is None:
        owned = _owned(folder.run(key), batch, attempt, job, view.queue_complete)
    seen = Evidence(
        batch=batch,
        cancelled=key in state.cancelled,
        outcome=None if outcome is None else str(outcome["state"]),
        attempt=attempt,
        alive=alive,
        job=job,
        problem="; ".join(view.problems),
        queue_complete=view.queue_complete,
        waiting=_why_waiting(state.waiting.get(key), no_room),
        retried=_decided(state, key, attempt),
        owned=owned,
        refused=state.refused.get(key),
        in_turn=batch is not None and batch.waits_its_turn(key),
        elsewhere=state.elsewhere.get(key),
    )
    return seen, outcome


def _is_alive(attempt: Attempt, state: ledger.Ledger) -> bool | None:
    """Return whether the process of an attempt without an outcome lives; None: it ended, or only a scheduler knows."""
    name = attempt.job.get("executor")
    if attempt.ended is None and state.is_of_another(attempt.batch):
        return False  # what may live there writes into the study that this one is a copy of
    return None if attempt.ended is not None or name is None or load(name).detached else is_alive(attempt.job)


def _owned(
    run: RunFolder, batch: ledger.Batch | None, attempt: Attempt | None, job: Job | None, queue_complete: bool
) -> bool | None:
    """Return whether another attempt still holds the run that a job left to it; None: no job did, or it is not over.

    An attempt holds its run's lock as long as any of its processes lives, so a free lock means that it is dead.
    """
    if batch is None or not detached(batch):
        return None
    if not queue_complete if job is None else job.state not in (JobState.FAILED, JobState.COMPLETED):
        return None
    note = read_record(run.left_to, LEFT_TO)
    mine = note is not None and note.get("name") == batch.name
    begun_since = note is not None and attempt is not None and float(attempt.job.get("started") or 0.0) > note["time"]
    if begun_since or not (mine or (job is not None and HELD_CODE in job.reason)):
        return None
    return not RunLock.is_free(run.lock)


def observe(folder: StudyFolder, look: Look = query) -> list[PointStatus]:
    """Return every point's status; the scheduler is asked once if one of them needs it."""
    observer = Observer(folder, look)
    open_points = any(not status.ended for status in observer.statuses())
    if open_points or any(map(detached, observer.known.batches.values())):
        observer.refresh()
    return observer.statuses()


def _describe(
    point: Point, folder: StudyFolder, seen: Evidence, derived: DerivedState, outcome: Mapping[str, Any] | None
) -> PointStatus:
    attempt = seen.attempt
    job: Mapping[str, Any] = attempt.job if attempt else {}
    step, tokens, loss = None, 0, None
    if outcome is not None:
        step, tokens = outcome.get("step"), int(outcome.get("tokens") or 0)
        loss = (outcome.get("loss") or {}).get("validation_nats_per_token")
    elif attempt is not None:
        record = last_metrics(folder.run(point.key))
        if record:
            step, tokens = record.get("step"), int(record.get("tokens") or 0)
            # A training loss is not that of a completed run, whose outcome is missing.
            loss = None if derived.state == PointState.COMPLETED else (record.get("metrics") or {}).get("loss")
    bad = derived.state in (PointState.FAILED, PointState.UNKNOWN)
    words = words_of(folder.run(point.key), seen) if bad else Words()
    return PointStatus(
        key=point.key,
        state=derived.state,
        why=derived.why,
        overrides=point.overrides,
        batch=seen.batch.name if seen.batch else None,
        attempt=attempt.number if attempt else None,
        job_id=job.get("job_id"),
        nodes=tuple(job.get("nodes") or ()),
        step=step,
        tokens=tokens,
        budget_tokens=point.tokens,
        loss=loss,
        seconds=_seconds(folder, point.key, attempt, derived.state),
        error=words.lines,
        kind=by_words("\n".join(words.lines)) if derived.kind == Kind.UNKNOWN else derived.kind,
        headline=words.headline if derived.state == PointState.FAILED else "",
        slow=_slow(folder.run(point.key), attempt) if derived.state == PointState.RUNNING else None,
        source=job.get("source"),
        elsewhere=None if derived.state in COMPLETE else seen.elsewhere,
    )


def _slow(run: RunFolder, attempt: Attempt | None) -> str | None:
    """Return the slow rank that the others of a running attempt wait for, in words; None if there is none."""
    world = int(attempt.job.get("world") or 1) if attempt else 1
    if attempt is None or world < 2 or attempt.ended is not None:
        return None
    folder = run.attempt(attempt.number)
    return slow_rank([read_beat(folder.beat(rank)) for rank in range(world)])


def _decided(state: ledger.Ledger, key: str, attempt: Attempt | None) -> bool:
    """Return whether the ledger has decided that another attempt follows this end."""
    ends = state.ends.get(key)
    if not ends or attempt is None:
        return False
    return ends[-1].attempt == attempt.number and ends[-1].action != "stop"


def words_of(run: RunFolder, seen: Evidence) -> Words:
    """Return the words of the attempt's end or log, or of the job's log if it ended before an attempt began."""
    words = _last_said(run, seen)
    # Lines of ^^^^ in tracebacks are dropped: they point into lines that are folded when they are shown.
    return replace(words, lines=tuple(line for line in words.lines if line.strip(" ~^")))


def _last_said(run: RunFolder, seen: Evidence) -> Words:
    attempt, batch = seen.attempt, seen.batch
    if attempt is not None and (batch is None or attempt.batch == batch.name):
        said = Words.of_end(attempt.ended)
        return said if said.lines else Words.of_lines(last_lines(run.attempt(attempt.number).stderr(0)), said.headline)
    if batch is None:
        return Words()
    return Words.of_lines(last_lines(load(batch.executor).log(StudyFolder(run.path.parent), batch, run.path.name)))


def _seconds(folder: StudyFolder, key: str, attempt: Attempt | None, state: str) -> float | None:
    """Return how long the latest attempt has run [s]; one that was killed outright, until its last sign of life."""
    if attempt is None or attempt.job.get("started") is None:
        return None
    if attempt.ended is not None:
        return float(attempt.ended.get("seconds") or 0.0)
    run, started = folder.run(key), float(attempt.job["started"])
    until = time.time() if state == PointState.RUNNING else last_sign(run, run.attempt(attempt.number), started)
    return max(0.0, until - started)


def _subfolders(path: Path) -> set[str]:
    try:
        with os.scandir(path) as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except OSError:
        return set()


def _why_waiting(asked: ledger.Waiting | None, no_room: str) -> str | None:
    """Return why a point is not submitted yet: there is no room, or its last submission failed; None if it is."""
    return None if asked is None else ": ".join(filter(None, ("queued later", no_room or asked.why)))
