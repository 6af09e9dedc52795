"""What a job does once its attempt ended: the end is recorded, and what follows from it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from study.executors import load
from study.failures.kinds import Ending, Kind
from study.failures.retry_policy import Action
from study.job.attempt import JobContext
from study.job.peers import is_time_to_look
from study.reconcile.failures import FailedAttempt, ends_of
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import AttemptEnd, Neighbours
from study.records import ledger
from study.records.bad_ends import end_fields
from study.records.settings import load_submission
from study.records.shapes import ATTEMPT_END, JOB
from study.storage.shapes import read_record

NOTHING_FOLLOWS = frozenset({Kind.COMPLETED, Kind.PAUSED, Kind.DIVERGED, Kind.CANCELLED, Kind.INTERRUPTED})
"""Kinds of ends that a job does not act on itself: it cannot know who interrupted it."""


def after(
    work: JobContext, number: int, ending: Ending, job: Mapping[str, Any], services: Services | None = None
) -> None:
    """Record and handle the end of a job's own attempt, then those of other jobs. For a job as it ends.

    May end this process: a job that SLURM requeues is killed. Never raises: the attempt's end is on disk, and whatever
    fails here is done by the next command or job.
    """
    services = services or Services()
    if not load(work.rank_info.executor).detached or work.until is not None or work.unit is not None:
        return
    try:
        if ending.kind not in NOTHING_FOLLOWS:
            step(work.study, services, AttemptEnd(_failed(work, number, ending, job)))
        if is_time_to_look(work.study, work.key):
            work.study.peers_checked.touch()
            step(work.study, services, Neighbours())
    except Exception as error:  # whatever it is, the attempt has ended as it did
        services.report(f"{work.key}: its retry is left to the next command: {type(error).__name__}: {error}")


def _failed(work: JobContext, number: int, ending: Ending, job: Mapping[str, Any]) -> FailedAttempt:
    whole = job.get("memory_gb")  # of the job: those that run side by side have it together
    gb = whole / work.batch.lanes if whole else work.resources.get("mem_gb")
    return FailedAttempt(
        work.key,
        work.batch.name,
        number,
        ending.kind,
        tuple(job.get("nodes") or ()),
        float(gb) if gb else None,
        work.rank_info.job_id if may_requeue(work) else None,
    )


def may_requeue(work: JobContext) -> bool:
    """Whether a job may ask SLURM to start it again: not one whose other points still run."""
    return bool(work.resources.get("requeue", True)) and work.batch.points == 1


def account_for_restart(work: JobContext, number: int, services: Services | None = None) -> Ending | None:
    """Write down how the job's earlier start ended where only SLURM knows: preempted, or its node failed.

    For a job that SLURM has requeued by itself. Returns the ending of this start where there have been too many.
    """
    services = services or Services()
    if not load(work.rank_info.executor).detached or not work.rank_info.restart or work.until is not None or number < 2:
        return None
    before = work.run.attempt(number - 1)
    job, ended = read_record(before.job, JOB), read_record(before.outcome, ATTEMPT_END)
    if job is None or job.get("job_id") != work.rank_info.job_id:
        return None
    if ended is not None and ended.get("kind", ended.get("state")) != Kind.INTERRUPTED:
        return None
    kind = services.executor(work.rank_info.executor).earlier_start(work.rank_info.job_id, services.sleep)
    if kind is None:
        return None
    rules = load_submission(work.study).retry.rules()
    nodes = tuple(job.get("nodes") or ())
    start = FailedAttempt(work.key, work.batch.name, number - 1, kind, nodes, job.get("memory_gb"))
    ends = ends_of(work.study, services, ledger.read(work.study), start, rules)
    ledger.extend(work.study, [{"event": "ended", **end_fields(end)} for end in ends])
    stops = [end for end in ends if end.action == Action.STOP and rules.kinds[kind].action != Action.STOP]
    return Ending(kind, why=stops[0].why) if stops else None
