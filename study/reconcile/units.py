"""Searches whose units are jobs of their own: what the search hands out waits in the ledger's queue as points do.

A unit is claimed before it is queued; its name in the ledger is the worker's name in the search's log. Killed in
between, the next step finds a claim that is not in the ledger, and the search hands the unit out again. Whether a job
lives is for SLURM to say; one that arrives after its unit was given up finds it so and ends.
"""

from __future__ import annotations

import time
from dataclasses import replace

from study.config.schema import ClusterConfig
from study.executors import job_spec_of, query
from study.executors.base import batch_name
from study.executors.job_spec import JobSpec
from study.executors.jobs import QueueView
from study.failures.kinds import Kind
from study.failures.retry_policy import Action, RetryRules
from study.process import code_snapshot
from study.reconcile.dispatch import dispatch
from study.reconcile.services import Services
from study.reconcile.two_phase import resolve_unclear
from study.records import ledger, shapes
from study.records.ledger import UNIT, Ledger
from study.records.points import load_points
from study.records.settings import load_submission
from study.search import pins
from study.search.retry import GONE, by_job
from study.search.state import Claim
from study.search.trial_queue import JOB, TrialQueue
from study.status import budget
from study.status.cost import attempts
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record


def submit_units(folder: StudyFolder, services: Services) -> int:
    """Queue the units that the search hands out now, as many as may run at once, and submit what fits; return how many.

    Gives up first the units whose jobs are gone. For the submit lock's holder. Raises ValueError where SLURM refuses
    or gives no answer, or a unit is over the study's budget.
    """
    unclear = resolve_unclear(folder, services)
    queue = TrialQueue.of(folder)
    give_up(queue, services)
    while len(_claimed(queue)) < queue.settings.workers and not unclear:
        claim = queue.claim(f"{JOB}{batch_name(folder.name)}", lease=False)
        if claim is None:
            break
        _queue(queue, claim, services)
    submitted = _dispatch(queue, services)
    if queue.search.over:
        pins.release_all(folder, queue.search)
    return submitted


def _dispatch(queue: TrialQueue, services: Services) -> int:
    """Submit what fits, and say which job each unit became; return how many went out."""
    before = ledger.read(queue.folder).current
    try:
        return dispatch(queue.folder, services)
    finally:
        known = ledger.read(queue.folder)
        for claim in queue.search.claims.values():
            batch = known.batch(unit := name_of(claim))
            if batch is not None and batch.job_id is not None and unit not in before:
                what = f"trial {claim.unit.trial} to {claim.unit.until:,} tokens"
                services.report(f"{what}: job {batch.job(batch.task(unit))} ({batch.name})")


def name_of(claim: Claim) -> str:
    """Return a unit's name in the ledger."""
    return claim.worker.removeprefix(JOB)


def choose_code(folder: StudyFolder, mode: str) -> None:
    """Write down, where the code is frozen, that later units run it as it is now, whoever submits them."""
    if mode == "frozen":
        version = code_snapshot.take(folder, mode)
        if ledger.read(folder).code != version.id:
            ledger.append(folder, "code", code=version.id)


def is_last(folder: StudyFolder) -> bool:
    """Whether there is work left and no job in which a unit is advanced: none that was confirmed."""
    queue, known = TrialQueue.of(folder), ledger.read(folder)
    search = queue.search
    units = [name_of(claim) for claim in _claimed(queue)]
    batches = (_batch(known, unit) for unit in units)
    if search.stopped or any(batch is not None and batch.job_id is not None for batch in batches):
        return False
    return bool(units) or not search.over


def withdraw(folder: StudyFolder) -> None:
    """Take the units that wait out of the queue: the search is stopped, or workers advance it from now on."""
    known = ledger.read(folder)
    waiting = [key for key, asked in known.waiting.items() if UNIT in asked.resources]
    if waiting:
        ledger.append(folder, "cancelled", keys=waiting)


def give_up(queue: TrialQueue, services: Services) -> None:
    """End the claims whose job SLURM knows to be gone, or which never became one. For the submit lock's holder."""
    queue.refresh()
    claims = _claimed(queue)
    if not claims:
        return
    known = ledger.read(queue.folder)
    of = {claim.number: _batch(known, name_of(claim)) for claim in claims}
    seen = query((batch for batch in of.values() if batch is not None), services.runner)
    with queue.transaction():
        for claim in claims:
            if queue.search.is_current(claim.number, claim.unit.trial):
                unit, batch = name_of(claim), of[claim.number]
                why = gone(known, unit, seen)
                if why is not None:
                    began, ended = _lasted(queue.folder, claim)
                    kind = _kind(unit, batch, seen)
                    queue.give_up(claim, why, ended - began, begun=began > 0.0, kind=kind)


def gone(known: Ledger, unit: str, seen: QueueView) -> str | None:
    """Return why a unit neither waits nor runs; None where it does, or where nobody can tell. Pure."""
    if unit in known.waiting:
        return None
    batch = _batch(known, unit)
    refused = known.refused.get(unit) or (batch.abandoned if batch is not None else None)
    if refused is not None:
        return f"its job was not submitted: {refused}"
    if batch is None:
        return "it was taken out of the queue" if unit in known.cancelled else "its submitter ended before it queued it"
    return _over(_job(unit, batch), seen) if batch.job_id is not None else None


def _over(name: str, seen: QueueView) -> str | None:
    job = seen.jobs.get(name)
    if job is None:
        return "SLURM knows no such job" if seen.queue_complete else None
    return f"SLURM says {job.word} of job {name}" if job.over else None


def _batch(known: Ledger, unit: str) -> ledger.Batch | None:
    """Return the batch of a unit; an earlier version submitted each as one that has its name."""
    return known.batch(unit) or known.batches.get(unit)


def _job(unit: str, batch: ledger.Batch) -> str:
    return batch.job(batch.task(unit) if batch.keys else 0)


def _kind(unit: str, batch: ledger.Batch | None, seen: QueueView) -> Kind:
    """Return the kind of end of a unit that is gone."""
    job = None if batch is None or batch.job_id is None else seen.jobs.get(_job(unit, batch))
    return by_job(job.word) if job is not None else GONE


def shape_of(folder: StudyFolder, key: str, cluster: ClusterConfig, services: Services) -> JobSpec:
    """Return what a point's job asks for: as the cluster section says, sized from the point where that says so."""
    if not cluster.auto:
        return job_spec_of(cluster)
    from study.planning import sizing

    there = services.executor(cluster.executor).site(folder.limits, services.clock())
    (sized,) = sizing.job_specs(folder, [load_points(folder)[key]], cluster, there)
    return sized.shape


def with_more_memory(shape: JobSpec, rules: RetryRules, times: int) -> JobSpec:
    """Return what a job asks for after its trial was short of memory so many times, where the policy is `more`."""
    rule = rules.kinds.get(Kind.HOST_MEMORY)
    if not times or rule is None or rule.action != Action.MORE or shape.mem_gb is None:
        return shape
    return replace(shape, mem_gb=round(shape.mem_gb * rules.memory_factor**times, 3))


def _queue(queue: TrialQueue, claim: Claim, services: Services) -> None:
    """Write down what the job of a claim asks for; ValueError where it cannot be, or the budget is spent."""
    folder = queue.folder
    try:
        told = load_submission(folder)
        shape = shape_of(folder, claim.key, told.cluster, services)
        shape = with_more_memory(shape, told.retry.rules(), queue.search.trials[claim.unit.trial].short_of_memory)
        if short := _short(folder, shape, services):
            raise ValueError(short)
    except ValueError as error:
        with queue.transaction():
            queue.give_up(claim, str(error), 0.0, begun=False)
        raise
    asked = {"resources": {**shape.record(), UNIT: True}, "code": _code(folder, shape)}
    waiting = {"event": "waiting", "keys": [name_of(claim)], "executor": told.cluster.executor, **asked}
    ledger.extend(folder, [waiting])


def _short(folder: StudyFolder, shape: JobSpec, services: Services) -> str:
    """Return why the budget does not bear one more job beside the units that wait; "" where it does."""
    remaining = budget.remaining_budget(folder, services.runner)
    if remaining is None:
        return ""
    for asked in ledger.read(folder).waiting.values():
        remaining.take(JobSpec.read(asked.resources), 1)
    return remaining.take(shape, 1)


def _code(folder: StudyFolder, shape: JobSpec) -> str:
    """Return the version of the code that a unit runs: as it is now, or as it was frozen by the search's command."""
    chosen = ledger.read(folder).code if shape.code == "frozen" else None
    return chosen or code_snapshot.take(folder, shape.code).id


def _lasted(folder: StudyFolder, claim: Claim) -> tuple[float, float]:
    """Return when a claim's attempts began, and when the last of them ended or said its last; zeros: none began."""
    run = folder.run(claim.key)
    told = {path.parent.name: read_record(path, shapes.JOB) or {} for path in run.attempts.glob("*/job.json")}
    numbers = {int(name) for name, job in told.items() if job.get("unit") == claim.number and name.isdigit()}
    mine = [one for one in attempts(folder, [claim.key], time.time()) if one.number in numbers]
    return min((one.started for one in mine), default=0.0), max((one.ended for one in mine), default=0.0)


def any_claimed(folder: StudyFolder) -> bool:
    """Whether units are claimed for jobs of their own."""
    return bool(_claimed(TrialQueue.of(folder)))


def give_up_all(folder: StudyFolder, services: Services) -> None:
    """Give up the units that wait, or whose jobs are gone, where workers advance the search now."""
    resolve_unclear(folder, services)
    withdraw(folder)
    give_up(TrialQueue.of(folder), services)


def _claimed(queue: TrialQueue) -> list[Claim]:
    return [claim for claim in queue.search.claims.values() if claim.worker.startswith(JOB)]
