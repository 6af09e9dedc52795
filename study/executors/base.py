"""What an executor is, and what it is asked. Nothing here knows a scheduler by name.

A new executor is a module with a class that derives from :class:`Executor` and a function `executor(runner)`, and its
line in :data:`study.config.executors.EXECUTORS`.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from study.executors.jobs import JobRun, Lookup, QueueReason, QueueView

if TYPE_CHECKING:
    from study.config.schema import ClusterConfig
    from study.executors.job_spec import JobSpec
    from study.failures.kinds import Kind
    from study.records.ledger import Batch
    from study.storage.layout import StudyFolder

ARRAY_LIMIT = 1000
"""Jobs of one array: what SLURM's default MaxArraySize of 1001 allows, in whole thousands."""


def batch_name(study: str, token: str | None = None) -> str:
    """Return a job name that is unique for ever, by which a submission can be looked up."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', study)[:60]}.{token or uuid.uuid4().hex[:10]}"


def chunks(keys: Sequence[str], limit: int = ARRAY_LIMIT) -> Iterator[tuple[str, ...]]:
    """Yield the arrays that many keys become. Each counts from 0 again, for it is the index that is capped."""
    for start in range(0, len(keys), limit):
        yield tuple(keys[start : start + limit])


@dataclass(frozen=True)
class Answer:
    """What a command said; `code` is None where it gave no answer (missing, or too slow)."""

    code: int | None
    out: str = ""
    error: str = ""


class Runner(Protocol):
    """Runs a command and returns its answer; never raises for what the command does."""

    def __call__(self, command: Sequence[str]) -> Answer:
        """Run it."""


class SubmitError(ValueError):
    """A scheduler refused a request or gave no answer.

    ambiguous: it may have been submitted all the same. full: it was refused because there are too many jobs already.
    """

    def __init__(self, message: str, ambiguous: bool, full: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        self.full = full


@dataclass(frozen=True)
class RankInfo:
    """One process of a job, as its executor started it. `restart` counts the requeues of the same job id.

    index: of the job in its array. starts_ranks: it is the only process of its run that was started, and starts the
    trainers of all `world` ranks itself, on this host. memory_gb: what the job was given on each of its nodes [GB].
    """

    executor: str
    job_id: str
    restart: int = 0
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    nodes: tuple[str, ...] = ()
    index: int = 0
    starts_ranks: bool = False
    memory_gb: float | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0


@dataclass(frozen=True)
class Limit:
    """One limit on jobs that are queued or running: `most` of them, `used` now; `what` names it for people."""

    what: str
    most: int
    used: int = 0

    @property
    def left(self) -> int:
        """How many more there may be."""
        return max(0, self.most - self.used)


class QueueLimits(Protocol):
    """How many jobs a scheduler takes right now. This one takes any number."""

    @property
    def alive(self) -> Mapping[str, int]:
        """The user's jobs that wait or run, by job or array id."""
        return {}

    @property
    def names(self) -> Mapping[str, str]:
        """The names of these jobs, as far as they are known."""
        return {}

    @property
    def problem(self) -> str:
        """Why nothing should be submitted now; "" where something may."""
        return ""

    @property
    def array_limit(self) -> int:
        """Jobs of one array at most; 0: jobs are submitted one by one."""
        return ARRAY_LIMIT

    def tightest(self, shape: JobSpec) -> Limit | None:
        """Return the limit of which the least is left for jobs of this shape; None where there is none."""
        return None


class Site(Protocol):
    """What one job may ask here, as far as it is known; what is not known is not refused."""

    @property
    def array_limit(self) -> int:
        """Jobs of one array at most; 0: jobs are submitted one by one."""
        return ARRAY_LIMIT

    def check(self, shape: JobSpec) -> str | None:
        """Return why a job of this shape can never start, and what would fit; None where it may."""
        return None

    def gpus_per_node(self, partition: str | None) -> int:
        """Return the most GPUs that a node of a partition has; 0: none, or not known."""
        return 0

    def jobs_at_once(self, shape: JobSpec) -> int | None:
        """Return how many jobs of this shape all nodes that they may use hold, if no one else does; None: not known."""
        return None

    def longest_minutes(self, shape: JobSpec) -> int | None:
        """Return the longest time limit that a job of this shape may ask [minutes]; None where nothing limits it."""
        return None


class AnySite(Site):
    """A site of which nothing is known."""


class NoLimits(QueueLimits):
    """A scheduler that takes any number of jobs."""


@dataclass(frozen=True)
class JobRequest:
    """One job, or an array of `count` jobs of which at most `parallel` run at once, under a unique name.

    count: None for one job that is no array. Each task runs `python -m module`, with the study's folder and --name.
    copy: the folder that it imports this code from; None: the checkout.
    """

    folder: StudyFolder
    shape: JobSpec
    name: str
    count: int | None
    parallel: int | None = None
    module: str = "study.job"
    copy: Path | None = None

    @property
    def command(self) -> list[str]:
        """The words after `python -m` of each task."""
        return [self.module, str(self.folder.path.absolute()), "--name", self.name]


class Executor(Protocol):
    """One kind of place where jobs run.

    title: its name in sentences. command: what takes its scripts.
    detached: its jobs wait and run without the command that submitted them; else that command starts them in its
    slots. allocates: each job is given the nodes, cores, GPUs and memory that it asks for, and a process for each rank;
    else jobs are processes of this machine. dependencies: a job may wait for another one to succeed.

    `submit`, `find`, `query`, `cancel` and `requeue` are only asked of one that is detached.
    """

    name: str
    title: str
    command: str = "sh"
    detached: bool = True
    allocates: bool = False
    dependencies: bool = False

    def check(self, cluster: ClusterConfig) -> None:
        """Raise ValueError for settings of a cluster section that it cannot do."""
        return

    def render(self, request: JobRequest) -> str:
        """Return the exact script of a request, which is what a dry run shows; asks no scheduler."""
        ...

    def submit(self, request: JobRequest, script: str) -> str:
        """Submit a rendered script, kept as `jobs/NAME.sh`; return its job id. Raises SubmitError."""
        ...

    def find(self, name: str, since: float) -> Lookup:
        """Look a submission up by its unique name; it was made after `since` [seconds since 1970]."""
        ...

    def query(self, ids: Sequence[str]) -> QueueView:
        """Return all that is known of these jobs or arrays, by job: `7_3` of the array 7. Absence is no evidence."""
        ...

    def queue(self, ids: Sequence[str]) -> QueueView:
        """Return those of them that wait or run."""
        return self.query(ids)

    def cancel(self, indices: Mapping[str, Iterable[int]]) -> None:
        """Cancel these tasks of these arrays (by job id), or jobs without any. Raises SubmitError."""

    def stop(self, ids: Sequence[str]) -> None:
        """Cancel the jobs among these that wait, and tell those that run to save and end. Raises ValueError."""
        self.cancel(dict.fromkeys(ids, ()))

    def requeue(self, job_id: str) -> bool:
        """Start the job that asks for it again, under the same id; False where that is not possible."""
        return False

    def site(self, memory: Path | None = None, now: float | None = None) -> Site:
        """Return what one job may ask. memory: a file that keeps what seldom changes; None: all is asked anew."""
        return AnySite()

    def limits(self, memory: Path, now: float) -> QueueLimits:
        """Return how many jobs it takes right now."""
        return NoLimits()

    def rank_info(self, environment: Mapping[str, str], world: int = 1) -> RankInfo:
        """Return which process of which job this is. world: ranks of the run, where this process starts them all."""
        ...

    def python_job(
        self, words: Sequence[str], cluster: ClusterConfig, environment: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command, with its environment, that runs Python with these words as a job and waits for it.

        Asked only of one that allocates. The job has one process, a run's cores and no GPU.
        """
        raise ValueError(f"{self.name} runs no command in a job: take cluster.prepare=here")

    def log(self, folder: StudyFolder, batch: Batch, key: str) -> Path:
        """Return where a point's job writes before and after its attempt."""
        return folder.jobs / f"{batch.job(batch.task(key))}_0_log.out"

    def explain(self, reason: str) -> QueueReason:
        """Return what the reason means that a queued job has."""
        return QueueReason(reason or "it is new to the queue")

    def job_names(self, ids: Iterable[str], others: Iterable[str] = ()) -> str:
        """Return jobs as its commands take them; others: jobs that must not be meant."""
        return " ".join(sorted(ids))

    def estimate(self, script: str) -> str:
        """Return when a script's first job would start, in words; "" where it cannot say."""
        return ""

    def accounting(self, batches: Sequence[Batch]) -> tuple[list[JobRun] | None, tuple[str, ...]]:
        """Return every run of these batches' jobs by accounting; None, and why, where it does not say."""
        return [], ()

    def earlier_start(self, job_id: str, sleep: Callable[[float], None] = time.sleep) -> Kind | None:
        """Return the kind of end (study.failures.kinds) of a requeued job's latest start but this one.

        None where accounting does not tell, or it was none of the scheduler's doing.
        """
        return None

    def preempts(self, job_id: str) -> bool:
        """Return whether the scheduler is ending this job now to make room for others; False where it does not say."""
        return False

    def node_states(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the scheduler's word for each of these nodes; none where it gives no answer."""
        return {}
