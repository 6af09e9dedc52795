"""Searches whose units are jobs of their own: whoever comes by submits what the scheduler wants. No controller.

A unit is claimed for a job before that is submitted; its name in the ledger is the worker's name in the log. Killed
in between, the next one who comes by finds a claim without a submission, or a submission of which nobody knows, and
settles it. Whether a job lives is for SLURM to say; one that arrives after its unit was given up finds it so and ends.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from study.config.schema import ClusterConfig
from study.executors.job_spec import Shape
from study.executors.slurm import query
from study.failures.kinds import Kind
from study.failures.retry_policy import Action, Rules
from study.process import code_snapshot
from study.reconcile.last_job import as_the_last
from study.reconcile.services import Services
from study.reconcile.two_phase import Request, resolve_unclear, send
from study.records import ledger
from study.records.points import load_points
from study.records.settings import load_submission
from study.search import pins
from study.search.retry import GONE, by_job
from study.search.state import Claim
from study.search.trial_queue import JOB, Office
from study.status import budget
from study.status.cost import attempts
from study.storage.files import locked, read_json
from study.storage.layout import StudyFolder

LOCK_SECONDS = 60.0
MODULE = "study.workers.worker"
UNIT = "unit"
"""In a batch's resources: the key that its job advances."""


def advance(folder: StudyFolder, services: Services | None = None) -> int:
    """Submit jobs for the units that the search hands out now, as many as may run at once; return how many.

    Gives up first the units whose jobs are gone. Raises ValueError where SLURM refuses or gives no answer.
    """
    with locked(folder.submitting, LOCK_SECONDS):
        return advance_held(folder, services or Services())


def advance_held(folder: StudyFolder, services: Services) -> int:
    """Do what :func:`advance` does, for the submit lock's holder."""
    submitted = 0
    unclear = resolve_unclear(folder, services)
    office = Office.of(folder)
    give_up(office, services)
    while _of_jobs(office) < office.settings.workers and not unclear:
        claim = office.claim(f"{JOB}{_name(folder)}", lease=False)
        if claim is None:
            break
        if not _submit(office, claim, services):
            break
        submitted += 1
    if office.search.over:
        pins.release_all(folder, office.search)
    return submitted


def choose_code(folder: StudyFolder, mode: str) -> None:
    """Write down, where the code is frozen, that later units run it as it is now, whoever submits them."""
    if mode == "frozen":
        version = code_snapshot.take(folder, mode)
        if ledger.read(folder).code != version.id:
            ledger.append(folder, "code", code=version.id)


def advance_quietly(folder: StudyFolder) -> None:
    """Submit what is wanted, for commands and jobs that do something else: say what went wrong and go on.

    What SLURM refused for good is not tried again before the study's command is given again, or a job of it ends.
    """
    try:
        if Office.of(folder).settings.shape == "jobs" and ledger.read(folder).refusal is None:
            advance(folder)
        else:
            give_up_gone(folder)
    except (ValueError, TimeoutError, OSError) as error:
        print(f"{folder.name}: jobs were not submitted: {error}", file=sys.stderr, flush=True)


def give_up_gone(folder: StudyFolder, services: Services | None = None) -> None:
    """Give up the units whose jobs are gone where workers advance the search now: these would wait for them."""
    office = Office.of(folder)
    if not _of_jobs(office):
        return
    with locked(folder.submitting, LOCK_SECONDS):
        resolve_unclear(folder, services or Services())
        give_up(office, services or Services())


def advance_at_end(folder: StudyFolder, services: Services | None = None) -> None:
    """Submit what is wanted, as a job whose unit is over; the last one of the search tries for a while.

    SLURM still counts jobs that end together with it, and itself. Says what went wrong and goes on, as above.
    """
    services = services or Services()
    try:
        if not advance(folder, services) and _is_last(folder):
            as_the_last(
                folder,
                services,
                lambda: _is_last(folder),
                lambda: advance(folder, services),
                is_final=lambda error: getattr(error, "ambiguous", True) is False,
            )
    except (ValueError, TimeoutError, OSError) as error:
        print(f"{folder.name}: jobs were not submitted: {error}", file=sys.stderr, flush=True)


def _is_last(folder: StudyFolder) -> bool:
    """Whether there is work left and no job in which a unit is advanced: none that was confirmed."""
    search, batches = Office.of(folder).search, ledger.read(folder).batches
    names = [c.worker.removeprefix(JOB) for c in search.claims.values() if c.worker.startswith(JOB)]
    if search.stopped or any(batches[name].job_id is not None for name in names if name in batches):
        return False
    return bool(names) or not search.over


def give_up(office: Office, services: Services) -> None:
    """End the claims whose job SLURM knows to be gone, or which never became one. For the submit lock's holder."""
    office.refresh()
    claims = [claim for claim in office.search.claims.values() if claim.worker.startswith(JOB)]
    if not claims:
        return
    batches = ledger.read(office.folder).batches
    of = {claim.number: batches.get(claim.worker.removeprefix(JOB)) for claim in claims}
    ids = sorted({batch.job_id for batch in of.values() if batch is not None and batch.job_id is not None})
    seen = query.look(ids, services.runner) if ids else query.View()
    with office.transaction():
        for claim in claims:
            if office.search.is_current(claim.number, claim.unit.trial):
                why = gone(of[claim.number], seen)
                if why is not None:
                    began, ended = _lasted(office.folder, claim)
                    office.lose(claim, why, ended - began, begun=began > 0.0, kind=_kind(of[claim.number], seen))


def gone(batch: ledger.Batch | None, seen: query.View) -> str | None:
    """Return why a claim's job neither waits nor runs; None where it does, or where nobody can tell. Pure."""
    if batch is None:
        return "its submitter ended before it submitted a job"
    if batch.abandoned is not None:
        return f"its job was not submitted: {batch.abandoned}"
    if batch.job_id is None:
        return None
    job = seen.jobs.get(batch.job(0))
    if job is None:
        return "SLURM knows no such job" if seen.queue_complete else None
    if job.state in ("queued", "running", "unknown"):
        return None
    return f"SLURM says {job.word} of job {batch.job_id}"


def _kind(batch: ledger.Batch | None, seen: query.View) -> Kind:
    """Return the kind of end of a claim's job that is gone."""
    job = None if batch is None or batch.job_id is None else seen.jobs.get(batch.job(0))
    return by_job(job.word) if job is not None else GONE


def shape_of(folder: StudyFolder, key: str, cluster: ClusterConfig, services: Services) -> Shape:
    """Return what a point's job asks for: as the cluster section says, sized from the point where that says so."""
    if not cluster.auto:
        return Shape.of(cluster)
    from study.executors.slurm.site import site
    from study.planning import sizing

    there = site(services.runner, folder.limits, services.clock())
    (sized,) = sizing.allot(folder, [load_points(folder)[key]], cluster, there)
    return sized.shape


def with_more_memory(shape: Shape, rules: Rules, times: int) -> Shape:
    """Return what a job asks for after its trial was short of memory so many times, where the policy is `more`."""
    rule = rules.kinds.get(Kind.HOST_MEMORY)
    if not times or rule is None or rule.action != Action.MORE or shape.mem_gb is None:
        return shape
    return replace(shape, mem_gb=round(shape.mem_gb * rules.memory_factor**times, 3))


def _submit(office: Office, claim: Claim, services: Services) -> bool:
    """Submit the job of a claim; False where there is no room now: then the unit is handed out again later."""
    folder, name = office.folder, claim.worker.removeprefix(JOB)
    try:
        told = load_submission(folder)
        shape = shape_of(folder, claim.key, told.cluster, services)
        shape = with_more_memory(shape, told.retry.rules(), office.search.trials[claim.unit.trial].short_of_memory)
        purse = budget.purse(folder, services.runner)
        short = "" if purse is None else purse.take(shape, 1)
        if short:
            raise ValueError(short)
    except ValueError as error:
        with office.transaction():
            office.lose(claim, str(error), 0.0, begun=False)
        raise
    request = Request(name, shape, None, code=_code(folder, shape), module=MODULE, also={UNIT: claim.key})
    sent = send(folder, request, services)
    if sent.full:
        with office.transaction():
            office.lose(claim, sent.full, 0.0, begun=False)
        return False
    services.say(f"trial {claim.unit.trial} to {claim.unit.until:,} tokens: job {sent.job_id} ({name})")
    return True


def _code(folder: StudyFolder, shape: Shape) -> str:
    """Return the version of the code that a unit runs: as it is now, or as it was frozen by the search's command."""
    chosen = ledger.read(folder).code if shape.code == "frozen" else None
    return chosen or code_snapshot.take(folder, shape.code).id


def _lasted(folder: StudyFolder, claim: Claim) -> tuple[float, float]:
    """Return when a claim's attempts began, and when the last of them ended or said its last; zeros: none began."""
    run = folder.run(claim.key)
    told = {path.parent.name: read_json(path) or {} for path in run.attempts.glob("*/job.json")}
    numbers = {int(name) for name, job in told.items() if job.get("unit") == claim.number and name.isdigit()}
    mine = [one for one in attempts(folder, [claim.key], time.time()) if one.number in numbers]
    return min((one.started for one in mine), default=0.0), max((one.ended for one in mine), default=0.0)


def _of_jobs(office: Office) -> int:
    return sum(claim.worker.startswith(JOB) for claim in office.search.claims.values())


def _name(folder: StudyFolder) -> str:
    from study.executors.slurm.sbatch import batch_name

    return batch_name(folder.name)
