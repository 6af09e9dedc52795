"""Submitting the workers of a search, each of which advances one trial after the other."""

from __future__ import annotations

from study.config.schema import ClusterConfig
from study.executors import job_spec_of, query
from study.executors.base import batch_name
from study.executors.job_spec import JobSpec
from study.process import code_snapshot
from study.reconcile import units
from study.reconcile.services import Services
from study.reconcile.two_phase import Request, send
from study.records import ledger
from study.status import budget
from study.storage.layout import StudyFolder
from study.text import counted


def submit_workers(folder: StudyFolder, services: Services, cluster: ClusterConfig, count: int) -> int:
    """Submit as many workers as are missing, as one array; return how many those were. For the submit lock's holder."""
    units.give_up_all(folder, services)  # that were jobs of their own, and would wait for these
    missing = count - _living(folder, services)
    if missing <= 0:
        services.report(f"{count} workers are queued or running already.")
        return 0
    shape = job_spec_of(cluster)
    if shape.points > 1:
        said = f"pack={shape.pack}" if shape.pack > 1 else f"points_per_job={shape.points}"
        raise ValueError(f"cluster.{said} is not allowed in a search, whose workers are jobs: set it to 1")
    remaining = budget.remaining_budget(folder, services.runner)
    short = remaining.take(shape, missing) if remaining is not None else ""
    if short:
        raise ValueError(f"{missing} workers: {short}")
    version = code_snapshot.take(folder, shape.code)
    executor = services.executor(cluster.executor)
    arrays = executor.site(folder.limits, services.clock()).array_limit > 0
    services.report(_send(folder, shape, version.id, missing, services, executor=executor.name, arrays=arrays))
    return missing


def _send(
    folder: StudyFolder, shape: JobSpec, code: str, count: int, services: Services, *, executor: str, arrays: bool
) -> str:
    """Submit this many workers, as one array or as single jobs; return what was submitted. code: what they run.

    Raises ValueError where one is refused; what went out before is said then too.
    """
    names: list[str] = []
    try:
        for _ in range(1 if arrays else count):
            name = batch_name(folder.name)
            jobs = count if arrays else None
            request = Request(name, shape, jobs, code=code, module="study.workers.worker", executor=executor)
            sent = send(folder, request, services)
            if sent.full:
                raise ValueError(sent.full)
            names.append(f"{sent.job_id} ({name})")
    except ValueError as error:
        if not names:
            raise
        raise ValueError(
            f"{error}: {len(names)} of {count} workers were submitted, as jobs {', '.join(names)}; these run, "
            "and the same command submits the others later"
        ) from error
    what = "job array" if arrays else "jobs"
    return f"submitted {counted(count, 'worker')} as {what} {', '.join(names)}"


def _living(folder: StudyFolder, services: Services) -> int:
    """Return how many workers of earlier submissions are queued or running; ValueError where SLURM does not say."""
    known = ledger.read(folder)
    seen = query(known.batches.values(), services.runner)
    if not seen.queue_complete:
        raise ValueError(f"SLURM does not say which workers run ({'; '.join(seen.problems)}): try again later")
    return sum(job.alive for job in seen.jobs.values())
