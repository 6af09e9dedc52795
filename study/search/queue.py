"""Why SLURM has not started a search's workers or jobs yet: its points belong to no job before they begin."""

from __future__ import annotations

from study import ledger
from study.executors import query
from study.layout import StudyFolder
from study.observe import Look, PointStatus
from study.overview import queued_lines


def waiting_jobs(folder: StudyFolder, look: Look = query.look) -> list[PointStatus]:
    """Return the search's jobs that live, as statuses without a point: queued, with SLURM's reason, or running."""
    batches = ledger.read(folder).batches.values()
    ids = sorted({str(b.job_id) for b in batches if b.executor == "slurm" and b.job_id and b.abandoned is None})
    jobs = look(ids).jobs if ids else {}
    return [
        PointStatus(key=name, state=job.state, reason=job.reason, job_id=name)
        for name, job in jobs.items()
        if job.state in query.ALIVE
    ]


def lines(folder: StudyFolder, look: Look = query.look) -> list[str]:
    """Return what keeps the search's jobs waiting and does not pass by itself, with what helps; nothing else."""
    return queued_lines(waiting_jobs(folder, look))
