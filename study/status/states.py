"""The state of a point, derived from evidence: outcome files first, then the scheduler, else unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from study.executors import detached
from study.executors.jobs import Job, JobState
from study.failures.kinds import FAILURES, INTERRUPTED, AttemptState, Kind, by_slurm
from study.failures.words import Words
from study.records.attempts import Attempt
from study.records.ledger import Batch


class PointState(StrEnum):
    """The state of a point; states are listed in this order."""

    COMPLETED = "completed"
    RUNNING = "running"
    QUEUED = "queued"
    WAITING = "waiting"
    PENDING = "pending"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    DIVERGED = "diverged"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> PointState:
        return cls.UNKNOWN


ENDED = frozenset(
    {
        PointState.COMPLETED,
        PointState.DIVERGED,
        PointState.FAILED,
        PointState.INTERRUPTED,
        PointState.TIME_LIMIT,
        PointState.CANCELLED,
    }
)
SAYS = "SLURM says"
"""Prefix of a reason that only SLURM has given."""
REFUSED = "refused by SLURM"
"""Prefix of the reason of a point for which SLURM refused a job for good: it needs other settings."""
RESUMABLE = frozenset({PointState.INTERRUPTED, PointState.TIME_LIMIT})
"""States of points whose runs resume from their newest checkpoint if they are submitted again."""


@dataclass(frozen=True)
class Evidence:
    """All that was observed of one point.

    outcome: state in the run's outcome.json. alive: whether the local process of the attempt lives (None: unknown).
    job: SLURM's view (None: it gave none). problem: why the scheduler's view is incomplete. queue_complete: squeue
    answered in full, so a job that it does not list neither waits nor runs. waiting: why the point is in the ledger and
    not submitted yet (None: it is not in it). retried: the ledger has decided that it is tried again. owned: whether
    another attempt still holds the run that the latest job left to it (None: no job did). refused: SLURM's message
    where it refused a job for good (None: it did not). in_turn: other points of its job begin before it. elsewhere: the
    study that asked for it, of which this one is a copy, where nothing was asked for here since.
    """

    batch: Batch | None = None
    cancelled: bool = False
    outcome: str | None = None
    attempt: Attempt | None = None
    alive: bool | None = None
    job: Job | None = None
    problem: str = ""
    queue_complete: bool = True
    waiting: str | None = None
    retried: bool = False
    owned: bool | None = None
    refused: str | None = None
    in_turn: bool = False
    elsewhere: str | None = None


NEVER_BEGAN = "it never began: its parent's job did not succeed"
"""Why a branch is interrupted whose job SLURM dropped, as its dependency failed."""
TURN_NEVER_CAME = "it never began: its job ended before its turn"
"""Why a point is interrupted that waited for a lane of its job."""
STRANDED = (NEVER_BEGAN, TURN_NEVER_CAME)
"""Reasons of points that never began: they are submitted again as they were."""
COPIED = "a copy: its job is of the study at "
"""Prefix of the reason of a point that another study asked for, whose folder was copied."""
TOLD_CODE = f"exit code {INTERRUPTED}:0"
"""sacct's exit code of a job that was told to end."""
IN_ITS_JOB = "it waits in its job for an earlier point to end"


@dataclass(frozen=True)
class DerivedState:
    """A point's state, the reason, and the kind of its end."""

    state: PointState
    why: str = ""
    kind: Kind = Kind.NONE


def derive_state(seen: Evidence) -> DerivedState:
    """Return the state of a point. Pure."""
    if seen.outcome is not None:
        return DerivedState(PointState.DIVERGED if seen.outcome == AttemptState.DIVERGED else PointState.COMPLETED)
    attempt = seen.attempt
    if seen.elsewhere is not None:
        return _copied(seen)
    if seen.batch is None:
        if attempt is not None and attempt.ended is None and seen.alive:
            return DerivedState(PointState.RUNNING)
        if seen.waiting is not None:
            return DerivedState(PointState.WAITING, seen.waiting)
        return _waiting(seen)
    mine = attempt if attempt is not None and attempt.batch == seen.batch.name else None
    return _scheduled(seen, mine) if detached(seen.batch) else _local(seen, mine)


def _copied(seen: Evidence) -> DerivedState:
    """Return the standing of a point that has not begun here: as it was when it was copied, where that was its end."""
    ended = seen.attempt.ended if seen.attempt is not None else None
    if ended is not None and not seen.retried:
        return _ended(seen, ended)
    return _waiting(seen) if seen.cancelled else DerivedState(PointState.PENDING, f"{COPIED}{seen.elsewhere}")


def _waiting(seen: Evidence) -> DerivedState:
    if seen.cancelled:
        return DerivedState(PointState.CANCELLED)
    return DerivedState(PointState.PENDING, "" if seen.refused is None else refused(seen.refused))


def refused(message: str) -> str:
    """Return why something is pending that SLURM took no job for, in SLURM's words."""
    return f"{REFUSED}: {message}"


def _local(seen: Evidence, mine: Attempt | None) -> DerivedState:
    if mine is None:
        # The attempt of an earlier batch may still be writing its checkpoint.
        return DerivedState(PointState.RUNNING) if seen.alive else _waiting(seen)
    if mine.ended is not None:
        return _ended(seen, mine.ended)
    if seen.alive is None:
        return DerivedState(PointState.UNKNOWN, f"it was started on {mine.job.get('host')}: ask there")
    if seen.alive:
        return DerivedState(PointState.RUNNING)
    if seen.cancelled:
        return DerivedState(PointState.CANCELLED)
    return DerivedState(PointState.INTERRUPTED, "its process was killed outright", Kind.KILLED)


def _scheduled(seen: Evidence, mine: Attempt | None) -> DerivedState:
    assert seen.batch is not None
    if seen.batch.ambiguous:
        return DerivedState(PointState.UNKNOWN, "there is no record of whether it was submitted: submit it again")
    job = seen.job
    if job is not None and job.alive:
        return (_packed(seen, mine) if job.state == JobState.RUNNING else None) or DerivedState(
            PointState(job.state), job.reason
        )
    ended = mine.ended if mine is not None else None
    if ended is None or ended.get("state") in (AttemptState.INTERRUPTED, AttemptState.PREEMPTED):
        left = _left_to_another(seen)
        if left is not None:
            return left
    if ended is not None:
        return _ended(seen, ended)
    return _never_said(seen, mine)


def _never_said(seen: Evidence, mine: Attempt | None) -> DerivedState:
    """Return the standing of a point whose attempt, if there was one, wrote nothing of its end."""
    job = seen.job
    if job is not None and job.state != JobState.UNKNOWN:
        return (_before_its_turn(seen, job) if mine is None and seen.in_turn else None) or _ended_by_slurm(seen, job)
    if seen.cancelled and mine is None:
        return DerivedState(PointState.CANCELLED)
    said = job.reason or f"{SAYS} {job.word}" if job else seen.problem or "neither squeue nor sacct knows it"
    return DerivedState(PointState.UNKNOWN, said)


def _before_its_turn(seen: Evidence, job: Job) -> DerivedState | None:
    """Return the standing of a point whose job ended without having begun it; None where that says nothing of it."""
    if seen.cancelled:
        return DerivedState(PointState.CANCELLED)
    if job.state in (JobState.COMPLETED, JobState.CANCELLED):
        return None
    if TOLD_CODE in job.reason:  # and it has not handed its points back: it did not know who told it
        return DerivedState(PointState.INTERRUPTED, "its job was told to end before its turn", Kind.INTERRUPTED)
    return DerivedState(PointState.INTERRUPTED, TURN_NEVER_CAME)


def _left_to_another(seen: Evidence) -> DerivedState | None:
    """Return the standing of a point whose job found the run held: it goes on once its owner is known to be gone."""
    if seen.owned is None or seen.cancelled:
        return None
    if seen.owned:
        return DerivedState(PointState.RUNNING, "an earlier attempt still holds the run")
    return DerivedState(PointState.INTERRUPTED, "an earlier attempt held the run; nobody holds it any more", Kind.HELD)


def _packed(seen: Evidence, mine: Attempt | None) -> DerivedState | None:
    """Return the standing of a point that has ended, or not begun, while its job goes on with the others."""
    if mine is None and seen.in_turn:
        return DerivedState(PointState.CANCELLED) if seen.cancelled else DerivedState(PointState.QUEUED, IN_ITS_JOB)
    if mine is None or not mine.ended or seen.batch is None or seen.batch.points == 1:
        return None
    match mine.ended.get("state"):
        case AttemptState.FAILED:
            return DerivedState(PointState.FAILED, kind=_kind(mine.ended))
        case AttemptState.CANCELLED:
            return DerivedState(PointState.CANCELLED)
    return None


def _ended(seen: Evidence, ended: Mapping[str, Any]) -> DerivedState:
    """Return the state that an attempt wrote; why it was interrupted, the scheduler and the ledger know better."""
    state, kind, job = str(ended.get("state", "unknown")), _kind(ended), seen.job
    told = state in (AttemptState.INTERRUPTED, AttemptState.PREEMPTED)
    if detached(seen.batch) and job is None and not seen.queue_complete and (told or seen.retried):
        return DerivedState(PointState.UNKNOWN, f"its attempt ended, and SLURM may have requeued it: {seen.problem}")
    if seen.retried and (seen.cancelled or (job is not None and job.state == JobState.CANCELLED)):
        return DerivedState(PointState.CANCELLED)  # while its job waited for its next start
    said = _by_job(job) if job is not None and (FAILURES[kind].unsure or told) else None
    if told and (seen.cancelled or said == Kind.CANCELLED):
        return DerivedState(PointState.CANCELLED)
    if job is not None and said is not None and said not in (Kind.NO_OUTCOME, Kind.CANCELLED):
        return _of(said, f"{SAYS} {job.word}")
    if told:
        return DerivedState(PointState.INTERRUPTED, "preempted" if state == AttemptState.PREEMPTED else "", kind)
    said_so = state in (AttemptState.FAILED, AttemptState.TIME_LIMIT, AttemptState.DIVERGED)
    return DerivedState(PointState(state), kind=kind if said_so else Kind.NONE)


def _by_job(job: Job) -> Kind | None:
    """Return the kind of end by SLURM's view of a job, if that implies one."""
    told = job.state in (JobState.NODE_FAILURE, JobState.TIME_LIMIT, JobState.PREEMPTED, JobState.CANCELLED)
    return by_slurm(job.word, job.reason) or (Kind(job.state) if told else None)


def _kind(ended: Mapping[str, Any]) -> Kind:
    """Return the kind of end in an attempt's outcome.json; an earlier version wrote none."""
    kind = Kind(ended.get("kind", ""))
    return Kind(ended.get("state", "unknown")) if kind in (Kind.NONE, Kind.UNKNOWN) else kind


def _of(kind: Kind, why: str) -> DerivedState:
    """Return the standing of a point whose latest end was of this kind by what SLURM says."""
    gone = kind in (Kind.PREEMPTED, Kind.NODE_FAILURE)
    return DerivedState(PointState.INTERRUPTED if gone else PointState(FAILURES[kind].state), why, kind)


def _ended_by_slurm(seen: Evidence, job: Job) -> DerivedState:
    """Return the state of an attempt that ended without writing how: what SLURM says of its job."""
    said = f"{SAYS} {job.word}" + (f", {job.reason}" if job.reason else "")
    if job.state == JobState.COMPLETED:
        return DerivedState(PointState.FAILED, f"{said}, but there is no outcome", Kind.NO_OUTCOME)
    if job.state in (JobState.PREEMPTED, JobState.NODE_FAILURE):
        return _of(_by_job(job) or Kind.UNKNOWN, said)
    batch, begun = seen.batch, seen.attempt is not None and seen.batch and seen.attempt.batch == seen.batch.name
    branch = batch is not None and batch.resources.get("dependency")
    if branch and job.state == JobState.CANCELLED and not (seen.cancelled or begun or _by_a_person(job)):
        return DerivedState(PointState.INTERRUPTED, NEVER_BEGAN)
    if job.state == JobState.CANCELLED or seen.cancelled:
        return DerivedState(PointState.CANCELLED, said)
    return DerivedState(PointState(job.state), said, _by_job(job) or Kind.UNKNOWN)


def _by_a_person(job: Job) -> bool:
    """Whether somebody cancelled a job that waited for another one, rather than SLURM, which names nobody then."""
    return " by " in job.word or job.reason == "Dependency"


@dataclass(frozen=True)
class PointStatus:
    """One point as a person wants to see it. `loss` [nats per token] is the validation loss once completed.

    kind: of which kind its end was (study.failures.kinds), headline: the line that says most of an error, next: what
    follows by itself and why, or why nothing does, or what helps. reason: the scheduler's own, of one that is queued;
    executor: whose that is. slow: the rank that the others wait for, and its node. source: which code the latest
    attempt ran, beside what was recorded for it (study.process.code_snapshot.ran); None where nobody can tell.
    elsewhere: the study whose job it is in, where this one is a copy of that and has not begun it itself. missing:
    steps that its metrics have lost for good, each `FIRST-LAST`.
    """

    key: str
    state: PointState
    why: str = ""
    overrides: tuple[str, ...] = ()
    batch: str | None = None
    attempt: int | None = None
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    step: int | None = None
    tokens: int = 0
    budget_tokens: int = 0
    loss: float | None = None
    seconds: float | None = None
    error: tuple[str, ...] = ()
    kind: Kind = Kind.NONE
    headline: str = ""
    next: str = ""
    slow: str | None = None
    source: str | None = None
    reason: str = ""
    executor: str = ""
    elsewhere: str | None = None
    missing: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what commands give out of it; the executor is said of each attempt."""
        return {name: value for name, value in vars(self).items() if name != "executor"}

    def told(self, most: int) -> list[str]:
        """Return its error in at most so many lines, the one that says most first."""
        return Words(self.headline, self.error).told(most)

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it unless somebody asks."""
        return self.state in ENDED
