"""How many jobs SLURM takes right now: limits of the controller, of the association and of the QOS, and what is used.

Read from `scontrol show config`, `scontrol show assoc_mgr`, `sacctmgr show qos` and `show assoc`, `sdiag` and one
squeue of the user's own jobs. What is not said or not understood limits nothing here: sbatch itself has the last word,
and a refusal for a limit leaves points waiting. Sizes of nodes and partitions are not read here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from study.executors.query import Answer, read_squeue

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
class Cap:
    """One limit on jobs that are queued or running: `most` of them, `used` now; `what` names it for people."""

    what: str
    most: int
    used: int = 0

    @property
    def left(self) -> int:
        """How many more there may be."""
        return max(0, self.most - self.used)

    @property
    def why(self) -> str:
        """Why something waits for it."""
        return f"{self.what} is {self.most:,}, and {self.used:,} are used"


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
    max_submit: Cap | None = None
    group_submit: Cap | None = None
    max_tres: Mapping[str, int] = field(default_factory=dict)
    max_wall: int | None = None
    group_tres: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Qos:
    """One quality of service, as :class:`Association`; the limits per user and account are None where not known.

    user_tres, account_tres: most that all jobs of one user, or of one account, hold together.
    """

    name: str
    group_submit: Cap | None = None
    per_user: Cap | None = None
    per_account: Mapping[str, Cap] = field(default_factory=dict)
    account_most: int | None = None
    max_tres: Mapping[str, int] = field(default_factory=dict)
    max_wall: int | None = None
    group_tres: Mapping[str, int] = field(default_factory=dict)
    user_tres: Mapping[str, int] = field(default_factory=dict)
    account_tres: Mapping[str, int] = field(default_factory=dict)
    deny: bool = False
    """Whether a job beyond its limits is refused at once (DenyOnLimit), not left pending."""
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

    complete: squeue answered and every line was understood.
    """

    alive: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    complete: bool = True

    @property
    def total(self) -> int:
        """Jobs that are queued or running."""
        return sum(self.alive.values())


@dataclass(frozen=True)
class Room:
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


@dataclass(frozen=True)
class Asked:
    """What decides which limits hold for a submission; None: the user's default."""

    user: str
    account: str | None = None
    partition: str | None = None
    qos: str | None = None


def read_config(text: str) -> Controller:
    """Return the controller's limits; a value that is not a number says nothing."""
    said = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(\S*)[ \t]*$", text, re.MULTILINE))
    enforced = set(said.get("AccountingStorageEnforce", "none").lower().split(","))
    return Controller(
        _number(said.get("MaxArraySize")),
        _number(said.get("MaxJobCount")),
        enforced=bool({"all", "safe", "limits"} & enforced),
    )


def read_assoc_mgr(text: str, user: str) -> Accounts:
    """Return what `scontrol show assoc_mgr` says of this user's associations, of the accounts above, and of QOS."""
    associations, qos = [], {}
    for record in re.split(r"^(?=ClusterName=|QOS=)", text, flags=re.MULTILINE):
        head = record.partition("\n")[0]
        if head.startswith("ClusterName="):
            said = dict(re.findall(r"(\w+)=(\S*)", record))
            if re.sub(r"\(\d+\)$", "", said.get("UserName", "")) in ("", user):
                associations.append(_association(said))
        elif match := re.match(r"QOS=(\S+?)(?:\(\d+\))?$", head.strip()):
            qos[match[1]] = _qos(match[1], record, _user_id(text, user))
    return Accounts(tuple(associations), qos, live=bool(associations))


def read_partitions(text: str) -> Partitions:
    """Return what `scontrol show partition` says of defaults and of QOS of partitions."""
    default, qos = None, {}
    for record in re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE):
        said = dict(re.findall(r"(\w+)=(\S*)", record))
        name = said.get("PartitionName")
        if name and said.get("Default") == "YES":
            default = name
        if name and said.get("QoS", "N/A") not in ("N/A", ""):
            qos[name] = said["QoS"]
    return Partitions(default, qos)


def read_sacctmgr_qos(text: str) -> dict[str, Qos]:
    """Return the QOS of `sacctmgr -n -P show qos format=QOS_FIELDS`; other lines are passed over."""
    found = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != len(QOS_FIELDS.split(",")) or not re.fullmatch(r"[\w.+-]+", parts[0]):
            continue
        name, per_user, per_account, group, tres, wall, flags, group_tres, user_tres, account_tres = parts
        user_most, group_most = _number(per_user), _number(group)
        found[name] = Qos(
            name,
            group_submit=None if group_most is None else Cap(f"GrpSubmitJobs of QOS {name}", group_most),
            per_user=None if user_most is None else Cap(f"MaxSubmitJobsPerUser of QOS {name}", user_most),
            account_most=_number(per_account),
            max_tres=read_tres(tres),
            max_wall=minutes(wall),
            group_tres=read_tres(group_tres),
            user_tres=read_tres(user_tres),
            account_tres=read_tres(account_tres),
            deny="DenyOnLimit" in flags,
            first="OverPartQOS" in flags,
        )
    return found


def read_sacctmgr_assoc(text: str) -> tuple[Association, ...]:
    """Return the associations of `sacctmgr -n -P show assoc format=ASSOC_FIELDS`; other lines are passed over."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != len(ASSOC_FIELDS.split(",")) or not parts[0]:
            continue
        account, user, partition, parent, qos, most, group, tres, wall, group_tres = parts
        found.append(
            Association(
                account,
                user,
                partition,
                parent,
                default_qos=qos,
                max_submit=_cap(f"MaxSubmitJobs of {user or account}", most),
                group_submit=_cap(f"GrpSubmitJobs of account {account}", group),
                max_tres=read_tres(tres),
                max_wall=minutes(wall),
                group_tres=read_tres(group_tres),
            )
        )
    return tuple(found)


QOS_FIELDS = (
    "Name,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,GrpSubmitJobs,MaxTRES,MaxWall,Flags,GrpTRES,MaxTRESPerUser,"
    "MaxTRESPerAccount"
)
ASSOC_FIELDS = "Account,User,Partition,ParentName,DefaultQOS,MaxSubmitJobs,GrpSubmitJobs,MaxTRES,MaxWall,GrpTRES"
ENDED = frozenset({"completed", "failed", "time_limit", "cancelled", "preempted", "node_fail"})


def read_queue(answer: Answer) -> Queue:
    """Return the user's jobs in squeue's answer; see :func:`study.executors.query.read_squeue`."""
    view = read_squeue(answer)
    alive = Counter(name.partition("_")[0] for name, job in view.jobs.items() if job.state not in ENDED)
    return Queue(alive, len(view.jobs), view.complete)


def read_sdiag(text: str) -> int:
    """Return how many jobs of all users sdiag counts as waiting or running; 0 where it does not say."""
    counts = re.findall(r"^Jobs (?:pending|running):\s*(\d+)\s*$", text, re.MULTILINE)
    return sum(map(int, counts))


def read_tres(text: str) -> dict[str, int]:
    """Return `cpu=4,mem=16G,gres/gpu=8` as numbers; memory in MB. What is not understood limits nothing.

    What is used of it may stand behind a limit, `cpu=7(3)`; `cpu=N(3)` is none.
    """
    found = {}
    for part in text.split(","):
        match = re.fullmatch(r"([\w/:.-]+)=(\d+)([KMGTP]?)(?:\(\d+\))?", part.strip())
        if match:
            scale = {"": 1, "K": 2**-10, "M": 1, "G": 2**10, "T": 2**20, "P": 2**30}[match[3]]
            found[match[1]] = int(int(match[2]) * scale)
    return found


def minutes(text: str) -> int | None:
    """Return a SLURM duration (`30`, `2-04`, `1-00:00:00`, `00:30:00`) in whole minutes; None where it is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        return days * 1440 + (first or 0) * 60 + (second or 0)
    if third is not None:
        return (first or 0) * 60 + (second or 0)
    return first  # minutes, or minutes:seconds


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


def caps(room: Room, asked: Asked) -> list[Cap]:
    """Return the limits that hold for a submission, with what is used of each. Pure.

    Where the controller does not count, the user's own jobs in squeue stand in: they may be more than what a limit
    counts, never less.
    """
    controller, accounts, partitions, queue = room.controller, room.accounts, room.partitions, room.queue
    found = []
    if controller.max_jobs is not None:
        held = max(queue.held, room.everybody + queue.held - queue.total)
        found.append(Cap("MaxJobCount of the cluster", controller.max_jobs - 1, held))
    if not controller.enforced:
        return found
    own = None if accounts.live else queue.total
    counted, levels = holding(accounts, partitions, asked)
    for association in counted:
        found += [_used(cap, own) for cap in (association.max_submit, association.group_submit) if cap]
    for qos in levels:
        found += [_used(cap, own) for cap in (qos.group_submit, qos.per_user) if cap]
        if counted and qos.account_most is not None:
            unseen = Cap(f"MaxSubmitJobsPerAccount of QOS {qos.name}", qos.account_most, queue.total)
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


def tightest(found: Sequence[Cap]) -> Cap | None:
    """Return the limit of which the least is left; None where there is none."""
    return min(found, key=lambda cap: cap.left, default=None)


def is_limit(said: str) -> bool:
    """Whether sbatch refused because there are too many jobs, so that the same submission will do later."""
    return any(word in said for word in REFUSALS)


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


def _used(cap: Cap, own: int | None) -> Cap:
    return cap if own is None else replace(cap, used=own)


def _association(said: Mapping[str, str]) -> Association:
    user = re.sub(r"\(\d+\)$", "", said.get("UserName", ""))
    account = said.get("Account", "")
    most = _cap(f"MaxSubmitJobs of {user or account}", said.get("MaxSubmitJobs", ""))
    group = _cap(f"GrpSubmitJobs of account {account}", said.get("GrpSubmitJobs", ""))
    wall = re.sub(r"\(.*", "", said.get("MaxWallPJ", ""))
    return Association(
        account,
        user,
        said.get("Partition", ""),
        re.sub(r"\(\d+\)$", "", said.get("ParentAccount", "")),
        said.get("DefAssoc") == "Yes",
        max_submit=most,
        group_submit=group,
        max_tres=read_tres(said.get("MaxTRESPJ", "")),
        max_wall=minutes(wall),
        group_tres=read_tres(said.get("GrpTRES", "")),
    )


def _qos(name: str, record: str, user_id: str) -> Qos:
    head, _, rest = record.partition("Account Limits")
    accounts, _, users = rest.partition("User Limits")
    said = dict(re.findall(r"(\w+)=(\S*)", head))
    per_account = {}
    for account, block in _blocks(accounts):
        text = dict(re.findall(r"(\w+)=(\S*)", block)).get("MaxSubmitJobsPA", "")
        cap = _cap(f"MaxSubmitJobsPerAccount of QOS {name}", text)
        if cap is not None:
            per_account[account] = cap
    per_user = None
    for user, block in _blocks(users):
        if user.partition("(")[0] in user_id.split("|"):
            text = dict(re.findall(r"(\w+)=(\S*)", block)).get("MaxSubmitJobsPU", "")
            per_user = _cap(f"MaxSubmitJobsPerUser of QOS {name}", text)
    return Qos(
        name,
        group_submit=_cap(f"GrpSubmitJobs of QOS {name}", said.get("GrpSubmitJobs", "")),
        per_user=per_user,
        per_account=per_account,
        max_tres=read_tres(said.get("MaxTRESPJ", "")),
        max_wall=minutes(re.sub(r"\(.*", "", said.get("MaxWallPJ", ""))),
        group_tres=read_tres(said.get("GrpTRES", "")),
    )


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the indented blocks of a QOS record: a line with a name alone, then lines of limits."""
    name, lines = None, list[str]()
    for line in text.splitlines():
        if line.strip() and "=" not in line and not line.strip().startswith("No "):
            if name is not None:
                yield name, "\n".join(lines)
            name, lines = line.strip(), []
        else:
            lines.append(line)
    if name is not None:
        yield name, "\n".join(lines)


def _user_id(text: str, user: str) -> str:
    """Return the names under which per-user records may list the user: `root|0`."""
    match = re.search(rf"UserName={re.escape(user)}\((\d+)\)", text)
    return f"{user}|{match[1]}" if match else user


def _cap(what: str, text: str) -> Cap | None:
    """Return `20(4)` or `20` as a limit; None for no limit (`N(4)`, empty) and for what is not understood."""
    match = re.fullmatch(r"(\d+)(?:\((\d+)\))?", text.strip())
    return Cap(what, int(match[1]), int(match[2] or 0)) if match else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
