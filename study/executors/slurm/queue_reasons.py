"""Why SLURM has not started a job yet: its reason in words, whether that passes by itself, and what helps. Pure.

The table is of the reasons in SLURM's own documentation of job reason codes (squeue(1)) and of the sentences that its
controller writes in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from study.executors.jobs import QueueReason, WaitKind
from study.executors.slurm.query import BEGIN_TIME, compress

NODES = "sinfo -R shows which and why; an administrator: scontrol update nodename=NODE state=resume"
LIMIT, STUCK = WaitKind.LIMIT, WaitKind.STUCK
RETRY = "then python -m study retry with --state cancelled"
AGAIN = f"run the command again, {RETRY}"
LIMITS = "sacctmgr show assoc where user=$USER, sacctmgr show qos"


_REASONS: Sequence[tuple[str, QueueReason]] = (
    (
        r"launch[ _]failed[ _]requeued[ _]held",
        QueueReason("SLURM could not start it on its node and has held it since", STUCK, "scontrol release {jobs}"),
    ),
    (
        r"(user[ _]env|JobHoldMaxRequeue|job requeued in held state|special exit|REQUEUE_HOLD|SPECIAL_EXIT)",
        QueueReason(
            "it failed to start or was requeued too often, and SLURM holds it", STUCK, "scontrol release {jobs}"
        ),
    ),
    (r"JobHeldUser", QueueReason("held by its owner", STUCK, "scontrol release {jobs}")),
    (
        r"JobHeldAdmin",
        QueueReason("held by an administrator", STUCK, "ask them why; they can run: scontrol release {jobs}"),
    ),
    (
        r"DependencyNeverSatisfied",
        QueueReason(
            "the job that it waits for did not succeed, so it never starts",
            STUCK,
            f"scancel {{jobs}}, {RETRY}",
        ),
    ),
    (r"Dependency", QueueReason("it waits for another job, as a branch for its parent's")),
    (
        r"BadConstraints|NodeNotInPart|PartitionNodeLimit|PartitionConfig|AccountNotAllowed|QOSNotAllowed|InvalidAccount"
        r"|InvalidQOS|.*(?:MaxWallDurationPerJob|PerJob|MaxWallPerJob|PartitionTimeLimit|PerNode(?:Limit)?\b)",
        QueueReason(
            "it requests more than the partition or your account allows, or something else",
            STUCK,
            f"scancel {{jobs}}, change cluster.* (python -m study doctor shows what there is), {AGAIN}",
        ),
    ),
    (
        r"(?i)ReqNodeNotAvail.*\bmaintenance\b",
        QueueReason(
            "its nodes are reserved for maintenance, which is under way or begins before its time limit is over",
            LIMIT,
            "scontrol show reservation shows from when to when; a job that ends before it starts now: scancel {jobs}, "
            f"give a smaller cluster.time_minutes, {AGAIN}",
        ),
    ),
    (
        r"(?i)ReqNodeNotAvail|Nodes required for job are|NodeDown|.*\b(?:DRAINED|UnavailableNodes)\b",
        QueueReason("the nodes that it could run on are down, drained or reserved", LIMIT, NODES),
    ),
    (
        r"PartitionDown|PartitionInactive",
        QueueReason(
            "its partition takes no jobs at present", LIMIT, "sinfo shows partitions; an administrator opens them"
        ),
    ),
    (r"(QOS|Assoc|Max|Association).*", QueueReason("a limit of your account or its QOS is used up", LIMIT, LIMITS)),
    (
        BEGIN_TIME,
        QueueReason(
            "it was told not to start before a time that is still to come",
            LIMIT,
            "to start it now: for job in {jobs}; do scontrol update JobId=$job StartTime=now; done",
        ),
    ),
    (r"BeginTime", QueueReason("it could not be started yet: SLURM tries again soon")),
    (r"JobArrayTaskLimit", QueueReason("its array already runs as many jobs as cluster.array_parallelism allows")),
    (r"Reservation", QueueReason("its reservation has not begun, or is over", LIMIT, "scontrol show reservation")),
    (r"Licenses", QueueReason("its licenses are in use")),
    (r"Priority", QueueReason("others are before it")),
    (r"Resources", QueueReason("the nodes are in use")),
)


@cache
def explain(reason: str) -> QueueReason:
    """Return what SLURM's reason (or, of a held job, its state) means; one that is not known is said as it is.

    Kept: thousands of jobs wait for a few reasons.
    """
    found = next((meaning for pattern, meaning in _REASONS if re.match(pattern, reason)), None)
    if found is None:
        return QueueReason(f"SLURM says {reason}" if reason else "it is new to the queue")
    return QueueReason(f"{found.words} ({reason})", found.kind, found.help)


def jobs(ids: Iterable[str], others: Iterable[str] = ()) -> str:
    """Return job ids as scontrol and scancel take them.

    An array by its own id where all of its tasks are meant, as far as these and `others` tell: they count from 0.
    """
    wanted = sorted(set(ids))
    kept = {one.partition("_")[0] for one in set(others).difference(wanted)}
    arrays: dict[str, list[int]] = {}
    for one in wanted:
        array, _, task = one.partition("_")
        arrays.setdefault(array, []).extend([int(task)] if task.isdigit() else [])
    return " ".join(_one(array, tasks, array not in kept) for array, tasks in arrays.items())


def _one(array: str, tasks: Sequence[int], alone: bool) -> str:
    """Return the name of some tasks of an array, or of a job without any; alone: no others of it are known."""
    if not tasks or (alone and sorted(tasks) == list(range(len(tasks)))):
        return array
    return f"{array}_{tasks[0]}" if len(tasks) == 1 else f"'{array}_[{compress(tasks)}]'"
