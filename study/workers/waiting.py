"""Why SLURM has not started a search's workers or jobs yet: its points belong to no job before they begin."""

from __future__ import annotations

from study.executors import query, submitted
from study.executors.jobs import QueueView
from study.records import ledger
from study.records.ledger import UNIT
from study.records.settings import reference
from study.records.shapes import QUEUE_NOTE
from study.search.state import Search
from study.search.trial_queue import JOB, TrialQueue
from study.status.copies import search_lines
from study.status.observer import Look
from study.status.overview import bad_ends, next_action, queued_lines, refused_lines, waiting_lines
from study.status.states import PointState, PointStatus, refused
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record


def waiting_jobs(folder: StudyFolder, look: Look = query) -> list[PointStatus]:
    """Return the search's jobs that live, as statuses without a point: queued, with SLURM's reason, or running.

    Of jobs of one unit each only those whose unit is not over: a search may have had thousands.
    """
    return _living(folder, look)[0]


def _living(folder: StudyFolder, look: Look) -> tuple[list[PointStatus], bool]:
    """Return the search's jobs that live, and whether that is all of them: the queue has answered."""
    known = submitted(ledger.read(folder).batches.values())
    if any(UNIT in batch.resources for batch in known):
        wanted = {claim.worker.removeprefix(JOB) for claim in TrialQueue.of(folder).search.claims.values()}
        known = [b for b in known if UNIT not in b.resources or wanted.intersection([b.name, *b.keys])]
    executors = {batch.job_id: batch.executor for batch in known}
    view = look(known) if known else QueueView()
    jobs = [
        PointStatus(
            name, PointState(job.state), job_id=name, reason=job.reason, executor=executors[name.partition("_")[0]]
        )
        for name, job in view.jobs.items()
        if job.alive
    ]
    return jobs, view.queue_complete


def idle(search: Search, folder: StudyFolder, look: Look = query) -> list[str]:
    """Return that nobody advances a search, nor is about to, and what to do; nothing where that is not so."""
    if search.over or search.stopped or search.running:
        return []
    jobs, all_of_them = _living(folder, look)
    if jobs or not all_of_them:
        return []
    return ["no worker is advancing a trial: run the study's command again to start some"]


def refusal(folder: StudyFolder) -> list[str]:
    """Return why SLURM refused the search's latest submission, and what to do; nothing where it did not."""
    said = ledger.read(folder).refusal
    if said is None:
        return []
    pending = [PointStatus(key=folder.name, state=PointState.PENDING, why=refused(said))]
    return [*refused_lines(pending), next_action({PointState.PENDING: 1}, reference(folder), bad_ends(pending))]


def lines(folder: StudyFolder, look: Look = query) -> list[str]:
    """Return what keeps the search's jobs waiting, or from being taken, for good, with what helps; nothing else.

    Of a copy, that its jobs are not its own.
    """
    if copied := search_lines(ledger.read(folder), folder.name):
        return copied
    return [*queued_lines(waiting_jobs(folder, look)), *waiting_lines(_units_without_a_job(folder)), *refusal(folder)]


def _units_without_a_job(folder: StudyFolder) -> list[PointStatus]:
    """Return the units that wait to be submitted, as statuses with why there was no room."""
    units = [key for key, asked in ledger.read(folder).waiting.items() if UNIT in asked.resources]
    why = str((read_record(folder.queue_note, QUEUE_NOTE) or {}).get("why") or "") if units else ""
    return [PointStatus(key=unit, state=PointState.WAITING, why=why) for unit in units]
