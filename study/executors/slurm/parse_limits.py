"""What SLURM's commands say of limits, as :mod:`study.executors.slurm.limits` decides by it. Pure: text in, values out.

Read are `scontrol show config`, `show assoc_mgr` and `show partition`, `sacctmgr show qos` and `show assoc`, `sdiag`
and one squeue of the user's own jobs. What is not said or not understood limits nothing. Sizes of nodes and partitions
are read in :mod:`study.executors.slurm.nodes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from study.executors.base import Answer, Limit
from study.executors.slurm.limits import Accounts, Association, Controller, Partitions, Qos, Queue
from study.executors.slurm.query import read_squeue

QOS_FIELDS = (
    "Name,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,GrpSubmitJobs,MaxTRES,MaxWall,Flags,GrpTRES,MaxTRESPerUser,"
    "MaxTRESPerAccount"
)
ASSOC_FIELDS = "Account,User,Partition,ParentName,DefaultQOS,MaxSubmitJobs,GrpSubmitJobs,MaxTRES,MaxWall,GrpTRES"


def read_config(text: str) -> Controller:
    """Return the controller's limits; a value that is not a number says nothing."""
    row = dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(\S*)[ \t]*$", text, re.MULTILINE))
    enforced = set(row.get("AccountingStorageEnforce", "none").lower().split(","))
    return Controller(
        _number(row.get("MaxArraySize")),
        _number(row.get("MaxJobCount")),
        enforced=bool({"all", "safe", "limits"} & enforced),
    )


def read_assoc_mgr(text: str, user: str) -> Accounts:
    """Return what `scontrol show assoc_mgr` says of this user's associations, of the accounts above, and of QOS."""
    associations, qos = [], {}
    for record in re.split(r"^(?=ClusterName=|QOS=)", text, flags=re.MULTILINE):
        head = record.partition("\n")[0]
        if head.startswith("ClusterName="):
            row = dict(re.findall(r"(\w+)=(\S*)", record))
            if re.sub(r"\(\d+\)$", "", row.get("UserName", "")) in ("", user):
                associations.append(_association(row))
        elif match := re.match(r"QOS=(\S+?)(?:\(\d+\))?$", head.strip()):
            qos[match[1]] = _qos(match[1], record, _user_id(text, user))
    return Accounts(tuple(associations), qos, live=bool(associations))


def read_partitions(text: str) -> Partitions:
    """Return what `scontrol show partition` says of defaults and of QOS of partitions."""
    default, qos = None, {}
    for record in re.split(r"^(?=PartitionName=)", text, flags=re.MULTILINE):
        row = dict(re.findall(r"(\w+)=(\S*)", record))
        name = row.get("PartitionName")
        if name and row.get("Default") == "YES":
            default = name
        if name and row.get("QoS", "N/A") not in ("N/A", ""):
            qos[name] = row["QoS"]
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
            group_submit=None if group_most is None else Limit(f"GrpSubmitJobs of QOS {name}", group_most),
            per_user=None if user_most is None else Limit(f"MaxSubmitJobsPerUser of QOS {name}", user_most),
            account_most=_number(per_account),
            max_tres=read_tres(tres),
            max_wall=minutes(wall),
            group_tres=read_tres(group_tres),
            user_tres=read_tres(user_tres),
            account_tres=read_tres(account_tres),
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


def read_queue(answer: Answer) -> Queue:
    """Return the user's jobs in squeue's answer; see :func:`study.executors.slurm.query.read_squeue`."""
    view = read_squeue(answer)
    alive = Counter(name.partition("_")[0] for name, job in view.jobs.items() if not job.over)
    names = {name.partition("_")[0]: job.name for name, job in view.jobs.items()}
    return Queue(alive, len(view.jobs), view.complete, names)


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


def _association(row: Mapping[str, str]) -> Association:
    user = re.sub(r"\(\d+\)$", "", row.get("UserName", ""))
    account = row.get("Account", "")
    most = _cap(f"MaxSubmitJobs of {user or account}", row.get("MaxSubmitJobs", ""))
    group = _cap(f"GrpSubmitJobs of account {account}", row.get("GrpSubmitJobs", ""))
    wall = re.sub(r"\(.*", "", row.get("MaxWallPJ", ""))
    return Association(
        account,
        user,
        row.get("Partition", ""),
        re.sub(r"\(\d+\)$", "", row.get("ParentAccount", "")),
        row.get("DefAssoc") == "Yes",
        max_submit=most,
        group_submit=group,
        max_tres=read_tres(row.get("MaxTRESPJ", "")),
        max_wall=minutes(wall),
        group_tres=read_tres(row.get("GrpTRES", "")),
    )


def _qos(name: str, record: str, user_id: str) -> Qos:
    head, _, rest = record.partition("Account Limits")
    accounts, _, users = rest.partition("User Limits")
    row = dict(re.findall(r"(\w+)=(\S*)", head))
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
        group_submit=_cap(f"GrpSubmitJobs of QOS {name}", row.get("GrpSubmitJobs", "")),
        per_user=per_user,
        per_account=per_account,
        max_tres=read_tres(row.get("MaxTRESPJ", "")),
        max_wall=minutes(re.sub(r"\(.*", "", row.get("MaxWallPJ", ""))),
        group_tres=read_tres(row.get("GrpTRES", "")),
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


def _cap(what: str, text: str) -> Limit | None:
    """Return `20(4)` or `20` as a limit; None for no limit (`N(4)`, empty) and for what is not understood."""
    match = re.fullmatch(r"(\d+)(?:\((\d+)\))?", text.strip())
    return Limit(what, int(match[1]), int(match[2] or 0)) if match else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
