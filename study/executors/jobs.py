"""What a scheduler says of jobs: their states, why they wait, their runs, and whether it knows a submission."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class JobState(StrEnum):
    """Where a scheduler sees a job."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_FAILURE = "node_failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Job:
    """A scheduler's view of one job or array task: our word for its state, its own word, why it waits, its name.

    reason: of one that has ended `exit code N:0`, or `exit code 0:N` where signal N killed it.
    """

    state: JobState
    word: str
    reason: str = ""
    name: str = ""

    @property
    def alive(self) -> bool:
        """Whether it waits or runs, as far as is known."""
        return self.state in (JobState.QUEUED, JobState.RUNNING)

    @property
    def over(self) -> bool:
        """Whether it is known to have ended."""
        return not self.alive and self.state != JobState.UNKNOWN

    def under(self, names: Collection[str], job_id: str) -> Job:
        """Return the job if it has one of these names, of the batches with its id; else one of which nothing is known.

        Ids are used again in time, and by each cluster. One of which no name is known is taken at its word.
        """
        if not self.name or self.name in names:
            return self
        said = f"job {job_id} is {self.name} here: look on the cluster that has its job, or its id was used again"
        return Job(JobState.UNKNOWN, "", said, self.name)


@dataclass(frozen=True)
class QueueView:
    """What one query of a scheduler returned.

    `complete`: the scheduler answered and every line was understood; only then may absence mean something.
    `problems`: why not, in words. `queue_complete`: the same of what waits or runs alone.
    """

    jobs: Mapping[str, Job] = field(default_factory=dict)
    complete: bool = True
    problems: tuple[str, ...] = ()
    queue_complete: bool = True

    def under(self, names: Mapping[str, Collection[str]]) -> QueueView:
        """Return the view in which nothing is known of jobs that are others'; names: of the batches with each id."""
        jobs = {i: job.under(names.get(i.partition("_")[0], ()), i) for i, job in self.jobs.items()}
        return replace(self, jobs=jobs)

    def joined(self, other: QueueView) -> QueueView:
        """Return the view of two schedulers, whose jobs have different ids."""
        return QueueView(
            {**self.jobs, **other.jobs},
            self.complete and other.complete,
            (*self.problems, *other.problems),
            self.queue_complete and other.queue_complete,
        )


class LookupAnswer(StrEnum):
    """Whether a scheduler knows a submission."""

    FOUND = "found"
    ABSENT = "absent"
    UNANSWERED = "unanswered"


@dataclass(frozen=True)
class Lookup:
    """Result of looking a submission up by its name; its id where it was found, why where nobody answered."""

    answer: LookupAnswer
    job_id: str | None = None
    why: str = ""


class WaitKind(StrEnum):
    """Whether a queued job will start by itself."""

    ORDINARY = "ordinary"
    """It will, as the queue moves on."""
    LIMIT = "limit"
    """Once other jobs end or a limit is raised."""
    STUCK = "stuck"
    """Never: somebody has to act."""


@dataclass(frozen=True)
class QueueReason:
    """Why a job is queued, in words; whether it will start by itself; what helps, {jobs} standing for the jobs' ids."""

    words: str
    kind: WaitKind = WaitKind.ORDINARY
    help: str = ""


@dataclass(frozen=True)
class JobRun:
    """One run of one job by a scheduler's accounting: a requeued job has several.

    started: seconds since 1970. gpus, cores: what it held; None: it does not say.
    """

    job_id: str
    started: float
    seconds: float
    gpus: int | None = None
    cores: int | None = None
    over: bool = True
    failed: bool = False
