"""How many jobs SLURM takes right now: limits of the controller, of the association and of the QOS, and what is used.

The values, and what follows from them; `parse_limits` reads them from SLURM's commands. What is
not known limits nothing here: sbatch itself has the last word, and a refusal for a limit leaves points waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from study.executors.base import ARRAY_LIMIT, Limit

if TYPE_CHECKING:
    from study.executors.job_spec import JobSpec

REFUSALS = (
    "AssocGrpSubmitJobsLimit",
    "AssocMaxSubmitJobLimit",
    "AssocMaxSubmitJobPerUserLimit",
    "QOSGrpSubmitJobsLimit",
    "QOSMaxSubmitJobPerAccountLimit",
    "QOSMaxSubmitJobPerUserLimit",
    "PartitionMaxSubmitJobs",
    "MaxJobCount",
    "Slurm temporarily unable to accept job",
    "Invalid job array specification",
)
"""Words by which sbatch says that there are too many jobs already, not that anything is wrong with these.

Or too many for one array, where the controller did not say how many it takes: points wait until it does."""


@dataclass(frozen=True)
class Controller:
    """What `scontrol show config` says: indices below `max_array`, jobs below `max_jobs` (None: it does not say).

    `enforced`: limits of associations and QOS hold here.
    """

    max_array: int | None = None
    max_jobs: int | None = None
    enforced: bool = False


@dataclass(frozen=True)
class Association:
    """One association: limits on submitted jobs with what is used of them, None where there is no limit.

    max_tres: most that one job may ask, e.g. {"cpu": 4, "gres/gpu": 8}. max_wall: its longest time [minutes].
    group_tres: most that all jobs below this association hold together.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    default: bool = False
    default_qos: str = ""
    max_submit: Limit | None = None
    group_submit: Limit | None = None
    max_tres: Mapping[str, int] = field(default_factory=dict)
    max_wall: int | None = None
    group_tres: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Qos:
    """One quality of service, as :class:`Association`; the limits per user and account are None where not known.

    user_tres, account_tres: most that all jobs of one user, or of one account, hold together.
    """

    name: str
    group_submit: Limit | None = None
    per_user: Limit | None = None
    per_account: Mapping[str, Limit] = field(default_factory=dict)
    account_most: int | None = None
    max_tres: Mapping[str, int] = field(default_factory=dict)
    max_wall: int | None = None
    group_tres: Mapping[str, int] = field(default_factory=dict)
    user_tres: Mapping[str, int] = field(default_factory=dict)
    account_tres: Mapping[str, int] = field(default_factory=dict)
    first: bool = False
    """Whether its limits go before those of the partition's QOS (OverPartQOS)."""


@dataclass(frozen=True)
class Accounts:
    """What is known of associations and QOS; `live`: uses are the controller's own counts."""

    associations: tuple[Association, ...] = ()
    qos: Mapping[str, Qos] = field(default_factory=dict)
    live: bool = False


@dataclass(frozen=True)
class Partitions:
    """The default partition's name, and the QOS whose limits hold in each partition that has one."""

    default: str | None = None
    qos: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    """The user's own jobs in squeue. `alive` by array id; `held`: all that the controller still remembers.

    names: of them, by array id. complete: squeue answered and every line was understood.
    """

    alive: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    complete: bool = True
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Jobs that are queued or running."""
        return sum(self.alive.values())


@dataclass(frozen=True)
class Limits:
    """All that one look at the limits gave.

    everybody: jobs of all users that wait or run, as far as known. problem: why nothing should be submitted on its
    strength. user: whose limits these are.
    """

    controller: Controller = field(default_factory=Controller)
    accounts: Accounts = field(default_factory=Accounts)
    partitions: Partitions = field(default_factory=Partitions)
    queue: Queue = field(default_factory=Queue)
    everybody: int = 0
    problem: str = ""
    user: str = ""

    @property
    def alive(self) -> Mapping[str, int]:
        """The user's jobs that wait or run, by job or array id."""
        return self.queue.alive

    @property
    def names(self) -> Mapping[str, str]:
        """The names of these jobs, by array id."""
        return self.queue.names

    @property
    def array_limit(self) -> int:
        """Jobs of one array at most; 0: jobs are submitted one by one."""
        return array_limit(self.controller.max_array)

    def tightest(self, shape: JobSpec) -> Limit | None:
        """Return the limit of which the least is left for jobs of this shape; None where there is none."""
        asked = Asked(self.user, shape.account, shape.partition, shape.qos)
        return min(caps(self, asked), key=lambda cap: cap.left, default=None)


@dataclass(frozen=True)
class Asked:
    """What decides which limits hold for a submission; None: the user's default."""

    user: str
    account: str | None = None
    partition: str | None = None
    qos: str | None = None


def array_limit(most: int | None) -> int:
    """Return how many jobs one array has at most where MaxArraySize is `most`; 0: jobs are submitted one by one.

    Sites switch arrays off by 0, and an array of the one job that 1 allows is no better than that job.
    """
    return ARRAY_LIMIT if most is None else 0 if most < 2 else min(ARRAY_LIMIT, most)


def merge(seen: Accounts, associations: Sequence[Association], named: Mapping[str, Qos]) -> Accounts:
    """Return the controller's live counts together with what only the database says.

    That is a QOS's limits per user and account while nobody uses them, and the default QOS of an association.
    """
    qos = dict(named)
    for name, live in seen.qos.items():
        known = named.get(name, live)
        qos[name] = replace(
            known,
            group_submit=live.group_submit or known.group_submit,
            per_user=live.per_user or known.per_user,
            per_account=live.per_account,
        )
    if not seen.live:
        return Accounts(tuple(associations), qos)
    defaults = {(a.account, a.user, a.partition): a.default_qos for a in associations}
    filled = (replace(a, default_qos=defaults.get((a.account, a.user, a.partition), "")) for a in seen.associations)
    return Accounts(tuple(filled), qos, live=True)


def caps(room: Limits, asked: Asked) -> list[Limit]:
    """Return the limits that hold for a submission, with what is used of each. Pure.

    Where the controller does not count, the user's own jobs in squeue stand in: they may be more than what a limit
    counts, never less.
    """
    controller, accounts, partitions, queue = room.controller, room.accounts, room.partitions, room.queue
    found = []
    if controller.max_jobs is not None:
        held = max(queue.held, room.everybody + queue.held - queue.total)
        found.append(Limit("MaxJobCount of the cluster", controller.max_jobs - 1, held))
    if not controller.enforced:
        return found
    own = None if accounts.live else queue.total
    counted, levels = holding(accounts, partitions, asked)
    for association in counted:
        found += [_used(cap, own) for cap in (association.max_submit, association.group_submit) if cap]
    for qos in levels:
        found += [_used(cap, own) for cap in (qos.group_submit, qos.per_user) if cap]
        if counted and qos.account_most is not None:
            unseen = Limit(f"MaxSubmitJobsPerAccount of QOS {qos.name}", qos.account_most, queue.total)
            found.append(qos.per_account.get(counted[0].account, unseen))
    return found


def holding(
    accounts: Accounts, partitions: Partitions, asked: Asked
) -> tuple[tuple[Association, ...], tuple[Qos, ...]]:
    """Return what a job is held by: its association with the accounts above, and its QOS, in SLURM's order. Pure.

    The first QOS that sets a limit decides it: the partition's, then the job's own, unless that says OverPartQOS.
    """
    partition = asked.partition or partitions.default
    mine = _mine(accounts.associations, replace(asked, partition=partition))
    own = asked.qos or (mine.default_qos if mine else "") or "normal"
    named = [name for name in (partitions.qos.get(partition or ""), own) if name in accounts.qos]
    levels = [accounts.qos[name] for name in dict.fromkeys(named) if name]
    if levels and levels[-1].first:
        levels.reverse()
    return tuple(_upwards(accounts.associations, mine)), tuple(levels)


def is_limit(message: str) -> bool:
    """Whether sbatch refused because there are too many jobs, so that the same submission will do later."""
    return any(word in message for word in REFUSALS)


def _mine(associations: Iterable[Association], asked: Asked) -> Association | None:
    """Return the association that jobs are counted in: of the account asked for, the partition's own if it has one."""
    own = [a for a in associations if a.user == asked.user]
    if asked.account is not None:
        own = [a for a in own if a.account == asked.account]
    elif any(a.default for a in own):
        accounts = {a.account for a in own if a.default}
        own = [a for a in own if a.account in accounts]
    exact = [a for a in own if a.partition and a.partition == asked.partition]
    return next(iter([*exact, *[a for a in own if not a.partition]]), None)


def _upwards(associations: Sequence[Association], mine: Association | None) -> Iterator[Association]:
    """Yield the user's association and those of the accounts above, whose groups it counts in."""
    if mine is None:
        return
    yield mine
    accounts = {a.account: a for a in associations if not a.user}
    name, seen = mine.account, set[str]()
    while name in accounts and name not in seen:
        seen.add(name)
        yield replace(accounts[name], max_submit=None)  # what a user inherits, the user's own record says
        name = accounts[name].parent


def _used(cap: Limit, own: int | None) -> Limit:
    return cap if own is None else replace(cap, used=own)
