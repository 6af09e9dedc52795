"""Where a point stands, from evidence: outcome files first, then the scheduler, and unknown where neither says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.executors.slurm.query import Job
from study.failures.kinds import STATES as KINDS
from study.failures.kinds import by_slurm
from study.failures.retry_policy import UNSURE
from study.records.attempts import Attempt
from study.records.ledger import Batch

STATES = (
    "completed",
    "running",
    "queued",
    "waiting",
    "pending",
    "interrupted",
    "time_limit",
    "cancelled",
    "diverged",
    "failed",
    "unknown",
)
ENDED = frozenset({"completed", "diverged", "failed", "interrupted", "time_limit", "cancelled"})
SAYS = "SLURM says"
"""How the reason of a standing begins that is SLURM's word alone."""
REFUSED = "refused by SLURM"
"""How the reason of a point begins that waits for a command with other settings."""
RESUMABLE = frozenset({"interrupted", "time_limit"})
"""States that a point leaves by submitting it again: its run carries on from the newest checkpoint."""


@dataclass(frozen=True)
class Evidence:
    """All that was seen of one point.

    outcome: state in the run's outcome.json. alive: whether the local process of the attempt lives (None: cannot be
    told from here). job: SLURM's view (None: it did not say). problem: why the scheduler's view is incomplete.
    queue_complete: squeue answered in full, so that a job that it does not name neither waits nor runs. waiting: why it
    is in the ledger and not submitted yet (None: it is not). again: it was decided that it goes on by itself. owned:
    whether another attempt still has the run that the latest job left to it (None: no job did). refused: in which words
    SLURM took no job for it, for good (None: it did not).
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
    again: bool = False
    owned: bool | None = None
    refused: str | None = None


NEVER_BEGAN = "it never began: its parent's job did not succeed"
"""Why a branch whose job SLURM gave up is interrupted."""


@dataclass(frozen=True)
class Standing:
    """A point's state, one of STATES, why it is that, and of what kind its end was (study.failures.kinds)."""

    state: str
    why: str = ""
    kind: str = ""


def judge(seen: Evidence) -> Standing:
    """Return where a point stands. Pure."""
    if seen.outcome is not None:
        return Standing("diverged" if seen.outcome == "diverged" else "completed")
    attempt = seen.attempt
    if seen.batch is None:
        if attempt is not None and attempt.ended is None and seen.alive:
            return Standing("running")
        if seen.waiting is not None:
            return Standing("waiting", seen.waiting)
        return _waiting(seen)
    mine = attempt if attempt is not None and attempt.batch == seen.batch.name else None
    return _local(seen, mine) if seen.batch.executor == "local" else _slurm(seen, mine)


def _waiting(seen: Evidence) -> Standing:
    if seen.cancelled:
        return Standing("cancelled")
    return Standing("pending", "" if seen.refused is None else refused(seen.refused))


def refused(said: str) -> str:
    """Return why something is pending that SLURM took no job for, in SLURM's words."""
    return f"{REFUSED}: {said}"


def _local(seen: Evidence, mine: Attempt | None) -> Standing:
    if mine is None:
        # The attempt of an earlier batch may still be writing its checkpoint.
        return Standing("running") if seen.alive else _waiting(seen)
    if mine.ended is not None:
        return _ended(seen, mine.ended)
    if seen.alive is None:
        return Standing("unknown", f"it was started on {mine.job.get('host')}: ask there")
    if seen.alive:
        return Standing("running")
    if seen.cancelled:
        return Standing("cancelled")
    return Standing("interrupted", "its process was killed outright", "killed")


def _slurm(seen: Evidence, mine: Attempt | None) -> Standing:
    assert seen.batch is not None
    if seen.batch.ambiguous:
        return Standing("unknown", "nobody wrote down whether it was submitted: submit again to settle it")
    job = seen.job
    if job is not None and job.state in ("queued", "running"):
        return (_packed(seen.batch, mine) if job.state == "running" else None) or Standing(job.state, job.reason)
    ended = mine.ended if mine is not None else None
    if ended is None or ended.get("state") in ("interrupted", "preempted"):
        left = _left_to_another(seen)
        if left is not None:
            return left
    if ended is not None:
        return _ended(seen, ended)
    return _never_said(seen, mine)


def _never_said(seen: Evidence, mine: Attempt | None) -> Standing:
    """Return the standing of a point whose attempt, if there was one, wrote nothing of its end."""
    job = seen.job
    if job is not None and job.state != "unknown":
        return _ended_by_slurm(seen, job)
    if seen.cancelled and mine is None:
        return Standing("cancelled")
    said = job.reason or f"{SAYS} {job.word}" if job else seen.problem or "neither squeue nor sacct know it"
    return Standing("unknown", said)


def _left_to_another(seen: Evidence) -> Standing | None:
    """Return the standing of a point whose job found the run held: it goes on once its owner is known to be gone."""
    if seen.owned is None or seen.cancelled:
        return None
    if seen.owned:
        return Standing("running", "an earlier attempt still has the run")
    return Standing("interrupted", "an earlier attempt had the run; nobody has it any more", "held")


def _packed(batch: Batch, mine: Attempt | None) -> Standing | None:
    """Return the standing of a point that ended while the packed job goes on with those that share it."""
    state = str(mine.ended.get("state")) if mine is not None and mine.ended and batch.pack > 1 else ""
    if mine is None or mine.ended is None or state not in ("failed", "cancelled"):
        return None
    return Standing(state, kind=_kind(mine.ended) if state == "failed" else "")


def _ended(seen: Evidence, ended: Mapping[str, Any]) -> Standing:
    """Return the state that an attempt wrote; why it was interrupted, the scheduler and the ledger know better."""
    state, kind, job = str(ended.get("state", "unknown")), _kind(ended), seen.job
    slurm = seen.batch is not None and seen.batch.executor == "slurm"
    told = state in ("interrupted", "preempted")
    if slurm and job is None and not seen.queue_complete and (told or seen.again):
        return Standing("unknown", f"its attempt ended, and SLURM may have requeued it: {seen.problem}")
    said = _by_job(job) if job is not None and (kind in UNSURE or told) else None
    if told and (seen.cancelled or said == "cancelled"):
        return Standing("cancelled")
    if job is not None and said not in (None, "no_outcome", "cancelled"):
        return _of(str(said), f"{SAYS} {job.word}")
    if told:
        return Standing("interrupted", "preempted" if state == "preempted" else "", kind)
    kind = kind if state in ("failed", "time_limit", "diverged") else ""
    return Standing(state if state in STATES else "unknown", kind=kind)


def _by_job(job: Job) -> str | None:
    """Return the kind of end that SLURM's view of a job tells of, if of any."""
    told = job.state if job.state in ("node_failure", "time_limit", "preempted", "cancelled") else None
    return by_slurm(job.word, job.reason) or told


def _kind(ended: Mapping[str, Any]) -> str:
    """Return the kind of end in an attempt's outcome.json; an earlier version wrote none."""
    kind, state = str(ended.get("kind", "")), str(ended.get("state", "unknown"))
    return kind if kind in KINDS else state if state in KINDS else "unknown"


def _of(kind: str, why: str) -> Standing:
    """Return the standing of a point whose latest end was of this kind by what SLURM says."""
    state = "interrupted" if kind in ("preempted", "node_failure") else KINDS[kind]
    return Standing(state, why, kind)


def _ended_by_slurm(seen: Evidence, job: Job) -> Standing:
    """Return the state of an attempt that ended without writing how: what SLURM says of its job."""
    said = f"{SAYS} {job.word}" + (f", {job.reason}" if job.reason else "")
    if job.state == "completed":
        return Standing("failed", f"{said}, but there is no outcome", "no_outcome")
    if job.state in ("preempted", "node_failure"):
        return _of(_by_job(job) or "unknown", said)
    batch, begun = seen.batch, seen.attempt is not None and seen.batch and seen.attempt.batch == seen.batch.name
    branch = batch is not None and batch.resources.get("dependency")
    if branch and job.state == "cancelled" and not (seen.cancelled or begun or _by_a_person(job)):
        return Standing("interrupted", NEVER_BEGAN)
    if job.state == "cancelled" or seen.cancelled:
        return Standing("cancelled", said)
    return Standing(job.state, said, _by_job(job) or "unknown")


def _by_a_person(job: Job) -> bool:
    """Whether somebody cancelled a job that waited for another one, rather than SLURM, which names nobody then."""
    return " by " in job.word or job.reason == "Dependency"


@dataclass(frozen=True)
class PointStatus:
    """One point as a person wants to see it. `loss` [nats per token] is the validation loss once completed.

    kind: of which kind its end was (study.failures.kinds), headline: the line that says most of an error, next: what
    follows by itself and why, or why nothing does, or what helps. reason: SLURM's own, of one that is queued.
    slow: the rank that the others wait for, and its node. source: which code the latest attempt ran, beside what was
    recorded for it (study.process.code_snapshot.ran); None where nobody can tell.
    """

    key: str
    state: str
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
    kind: str = ""
    headline: str = ""
    next: str = ""
    slow: str | None = None
    source: str | None = None
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it unless somebody asks."""
        return self.state in ENDED
