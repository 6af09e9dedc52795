"""The one step that brings a study forward: query, record failures, resolve unclear submissions, dispatch.

Every command and job that changes what is submitted calls :func:`step` and nothing else of this package; its trigger
says what is asked. The step is idempotent: it may be killed anywhere and taken again. Nothing is submitted twice,
nothing is lost. Stages are imported where they are needed: most looks and most jobs that end need none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from study.reconcile.services import Services
from study.reconcile.triggers import (
    AttemptEnd,
    JobEnd,
    LocalEnds,
    Look,
    LostUnits,
    Neighbours,
    Resolve,
    Submit,
    Trigger,
    UnitEnd,
    Units,
    Workers,
)
from study.records import ledger
from study.records.ledger import Ledger
from study.records.shapes import QUEUE_NOTE
from study.storage.files import locked
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record

if TYPE_CHECKING:
    from study.status.observer import Observer
    from study.status.states import PointStatus

SUBMITTER_SECONDS = 120.0
"""How long a command waits for another process that submits."""
NEIGHBOURS_SECONDS = 30.0
"""How long a job that looks after others waits for one that submits: nobody may come after it."""
SEARCH_SECONDS = 60.0
"""How long a step of a search waits for another process that submits."""
LOOK_SECONDS = 10.0
"""How often commands that look at a study ask for room, all of them together."""


@dataclass(frozen=True)
class Stepped:
    """What a step has done.

    submitted: points that went out. statuses: of :class:`Look`, how the points stand after it. retried: of
    :class:`LocalEnds`, keys that are to be started again.
    """

    submitted: int = 0
    statuses: Sequence[PointStatus] = ()
    retried: Sequence[str] = ()


def step(study: StudyFolder, services: Services, trigger: Trigger) -> Stepped:
    """Take the step.

    Raises ValueError where the scheduler refuses for good, or gives no answer to a submission; for :class:`Look` that
    is only said.
    """
    match trigger:
        case Look():
            return _after_look(study, services, trigger)
        case LocalEnds():
            return Stepped(retried=_local_ends(study, services, trigger))
        case Neighbours() | AttemptEnd() | JobEnd():
            return Stepped(_by_a_job(study, services, trigger))
        case Units() | UnitEnd() | LostUnits() | Workers():
            return Stepped(_of_search(study, services, trigger))
        case Submit() | Resolve():
            return Stepped(_as_asked(study, services, trigger))


def _as_asked(study: StudyFolder, services: Services, asked: Submit | Resolve) -> int:
    """Do what a person asks, under the submit lock; return how many points went out."""
    from study.reconcile.dispatch import dispatch
    from study.reconcile.two_phase import resolve_unclear

    study.path.mkdir(parents=True, exist_ok=True)
    try:
        with locked(study.submitting, SUBMITTER_SECONDS):
            for left in resolve_unclear(study, services, force=isinstance(asked, Resolve) and asked.force):
                services.report(f"{left.name}: left as it is: {left.why}")
            out = 0
            if isinstance(asked, Submit):
                from study.reconcile.wanted import queue_points

                out = queue_points(study, services, asked)
            return out + dispatch(study, services)
    except TimeoutError:
        raise ValueError(
            f"study {study.name}: another process has been submitting it for {SUBMITTER_SECONDS:.0f} s "
            f"(it holds {study.submitting}): look at it, then run the command again"
        ) from None


def _after_look(study: StudyFolder, services: Services, look: Look) -> Stepped:
    """Record and submit what follows from a status query; no error of that stops the command that asked."""
    observer, before = look.observer, look.observer.known
    aside = replace(services, report=lambda text: None) if look.quiet else services
    submitted = None
    try:
        submitted = _record_and_submit(study, services, observer, look.statuses)
    except (OSError, ValueError) as error:
        services.report(str(error))
    known = observer.known
    if submitted is None and (known.waiting or known.unclear) and not _asked_lately(study, services, LOOK_SECONDS):
        try:
            submitted = _submit(study, aside)
        except (OSError, ValueError) as error:
            aside.report(str(error))
    if observer.known is before:
        return Stepped(submitted or 0, look.statuses)
    observer.refresh()
    return Stepped(submitted or 0, observer.statuses())


def _record_and_submit(
    study: StudyFolder, services: Services, observer: Observer, statuses: Sequence[PointStatus], wait: float = 0.0
) -> int | None:
    """Record the failures among what was seen and submit what follows; None where nothing does."""
    from study.failures.retry_policy import ENDED_BADLY
    from study.status.states import STRANDED

    never_began = any(status.why in STRANDED for status in statuses)
    if not never_began and not any(status.state in ENDED_BADLY and status.kind for status in statuses):
        return None
    from study.reconcile import failures

    again = failures.record(study, services, observer, statuses, wait)
    return _submit(study, services, stranded=never_began) if again or never_began else None


def _submit(study: StudyFolder, services: Services, *, sparing: bool = False, stranded: bool = False) -> int | None:
    """Resolve what is unclear and submit what waits; None where another process is at it, which does the same.

    stranded: points were seen whose jobs never began them.
    """
    if not (stranded or _is_work_left(ledger.read(study))):
        return 0
    from study.reconcile.dispatch import dispatch
    from study.reconcile.two_phase import resolve_unclear

    try:
        with locked(study.submitting, 0):
            resolve_unclear(study, services, patient=False)
            return dispatch(study, services, sparing=sparing)
    except TimeoutError:
        return None


def _by_a_job(study: StudyFolder, services: Services, trigger: Neighbours | AttemptEnd | JobEnd) -> int:
    """Do what a job does as it ends; return how many points went out."""
    if isinstance(trigger, JobEnd):
        return _at_end(study, services, trigger.keys)
    if isinstance(trigger, AttemptEnd):
        from study.reconcile import failures

        again = failures.record_own(study, services, trigger.failed)
        return _at_end(study, services, {trigger.failed.key}) if again else 0
    from study.executors import query
    from study.status.observer import Observer

    observer = Observer(study, lambda batches: query(batches, services.runner))
    observer.refresh()
    return _record_and_submit(study, services, observer, observer.statuses(), NEIGHBOURS_SECONDS) or 0


def _at_end(study: StudyFolder, services: Services, ended: Collection[str]) -> int:
    """Submit what waits, as a job of these points that ends: jobs do it once in a while, and the last ones always."""
    state = ledger.read(study)
    if not _is_work_left(state):
        return 0
    from study.reconcile import disk, last_job

    submit = partial(_submit, study, services, sparing=True)
    if disk.no_room(study, state):
        return submit() or 0  # only says why nothing goes out: the last job has nothing to wait for
    if not last_job.has_live_jobs(study, state, ended, services.runner):
        return last_job.submit_as_last_job(study, services, partial(_is_last, study, services, ended), submit)
    wait = 0.0 if _opens(study, state, ended) else _pause(study, services, last_job.pace(study, state, ended))
    if wait <= last_job.WAIT_SECONDS:
        leaving = partial(last_job.others_leave, study, ended, services.runner)
        return last_job.submit_once_others_left(study, services, leaving, submit, wait)
    return 0


def _is_last(study: StudyFolder, services: Services, ended: Collection[str]) -> bool:
    """Whether there is something to submit, and no job of the study left that would do it as it ends."""
    from study.reconcile.last_job import has_live_jobs

    known = ledger.read(study)
    return _is_work_left(known) and not has_live_jobs(study, known, ended, services.runner)


def _is_work_left(known: Ledger) -> bool:
    return bool(known.waiting or known.unclear or known.has_dependencies)


def _asked_lately(study: StudyFolder, services: Services, seconds: float) -> bool:
    """Whether the scheduler was asked for room within the last `seconds`."""
    return _pause(study, services, seconds) > 0


def _pause(study: StudyFolder, services: Services, seconds: float) -> float:
    """Return how long it is until the scheduler was last asked for room `seconds` ago [s]."""
    when = (read_record(study.queue_note, QUEUE_NOTE) or {}).get("time")
    ago = services.clock() - when if isinstance(when, int | float) else seconds
    return seconds - ago if 0 <= ago < seconds else 0.0


def _opens(study: StudyFolder, state: Ledger, ended: Collection[str]) -> bool:
    """Whether a point that ended lets others go out that waited for it."""
    from study.records.point import has_branches

    return bool(state.waiting) and any(has_branches(study, key) for key in ended)


def _local_ends(study: StudyFolder, services: Services, trigger: LocalEnds) -> Sequence[str]:
    """Write down new tries of runs of this machine; return their keys."""
    if trigger.left_behind:
        from study.executors.local import write_batch

        batch = trigger.known.batch(trigger.left_behind[0])
        code, resources = (batch.code, batch.resources) if batch else (None, None)
        write_batch(study, trigger.left_behind, code, resources)
        return trigger.left_behind
    from study.reconcile import failures

    return failures.record_local(study, services, trigger.known, trigger.statuses)


def _of_search(study: StudyFolder, services: Services, trigger: Units | UnitEnd | LostUnits | Workers) -> int:
    """Advance a search whose trials are jobs; return how many of them went out."""
    from study.reconcile import units

    def submit() -> int:
        with locked(study.submitting, SEARCH_SECONDS):
            return units.submit_units(study, services)

    match trigger:
        case Workers(count, cluster, begin):
            from study.reconcile.search_workers import submit_workers

            with locked(study.submitting, SUBMITTER_SECONDS):
                if begin is not None:
                    begin()
                return submit_workers(study, services, cluster, count)
        case LostUnits():
            if units.any_claimed(study):
                with locked(study.submitting, SEARCH_SECONDS):
                    units.give_up_all(study, services)
            return 0
        case Units():
            if trigger.begin is None:
                return submit()
            with locked(study.submitting, SUBMITTER_SECONDS):
                trigger.begin()
                return units.submit_units(study, services)
        case UnitEnd():
            out = submit()
            if out or not units.is_last(study):
                return out
            from study.reconcile.last_job import submit_as_last_job

            # SLURM still counts jobs that end together with it, and itself.
            return submit_as_last_job(study, services, partial(units.is_last, study), submit, is_final=_is_refused)


def _is_refused(error: ValueError) -> bool:
    return getattr(error, "ambiguous", True) is False
