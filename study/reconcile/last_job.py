"""Which jobs of a study have ended, by files and SLURM, and what the last one does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from study.executors import queue, submitted
from study.executors.base import Runner
from study.failures.retry_policy import Action
from study.reconcile.services import Services
from study.records import ledger
from study.records.ledger import Ledger
from study.storage.files import locked
from study.storage.layout import StudyFolder

PACE_SECONDS = 30.0
"""How often the jobs of a study ask for room as they end, all of them together."""
FEW_PACE_SECONDS, LEAST_PACE_SECONDS = 10.0, 1.0
"""The same where `FEW` points are left in the queue, and where there is one: short jobs would run out before that."""
FEW = 20
"""Jobs that leave at most so many points ask SLURM after these: they may be the last to ask."""
TRIES, SECONDS = 12, 3.0
WAIT_SECONDS = 1.5
"""How long a job waits, rather than leave at once, until it may ask again."""
STAYS, STAY_SECONDS = 5, 1.0
"""How often a job that ends together with others asks for the room that they leave, and how long before each time."""
HAND_OVER_SECONDS = 0.5
"""How long a last job waits for another one that is about to give up."""


def pace(folder: StudyFolder, state: Ledger, ended: Collection[str]) -> float:
    """Return how long jobs that end wait after anybody asked for room [s]: less where the queue runs dry soon."""
    left = len(_some_open(folder, state, ended))
    return PACE_SECONDS if left > FEW else max(LEAST_PACE_SECONDS, FEW_PACE_SECONDS * (left / FEW) ** 2)


def has_live_jobs(folder: StudyFolder, state: Ledger, ended: Collection[str], runner: Runner | None = None) -> bool:
    """Whether a job of the study is left that submits what waits as it ends.

    Where files leave only a few points of which that may be true, SLURM is asked: a job that was killed outright, or
    cancelled before it began, wrote nothing. Where it gives no answer they may all live.
    """
    left = _some_open(folder, state, ended)
    if not 0 < len(left) <= FEW:
        return bool(left)
    names = {batch.job(batch.task(key)) for key, batch in left}
    view = queue((batch for _, batch in left), runner)
    jobs = (view.jobs[name] for name in names if name in view.jobs)
    # What SLURM clears away has written its end, or never will.
    return not view.complete or any(job.alive and job.word != "COMPLETING" for job in jobs)


def others_leave(folder: StudyFolder, ended: Collection[str], runner: Runner | None = None) -> bool:
    """Whether jobs whose points have ended, by files, still count as alive beside that of the points that end now.

    Where many points are left that does not matter: their jobs take the place of those that end.
    """
    state = ledger.read(folder)
    if not state.waiting:
        return False
    left = _some_open(folder, state, ended)
    if len(left) > FEW:
        return False
    mine = ((key, batch) for key in ended if (batch := state.batch(key)) is not None)
    known = {batch.job(batch.task(key)) for key, batch in (*left, *mine)}
    view = queue(submitted(state.batches.values())[-FEW:], runner)
    return any(job.alive and name not in known for name, job in view.jobs.items())


def submit_once_others_left(
    folder: StudyFolder,
    services: Services,
    leaving: Callable[[], bool],
    send: Callable[[], int | None],
    first: float = 0.0,
) -> int:
    """Submit what waits, by `send`, as a job that may end together with others; return how much went out.

    They count as alive until they are gone: while others leave, one of them stays, for some seconds. It asks last when
    all have gone. first: how long it waits before it asks at all [s].
    """
    out = 0
    with suppress(TimeoutError), locked(folder.staying_lock, timeout=0):
        if first:
            services.sleep(first)
        for left in reversed(range(STAYS)):
            others = leaving()
            out += send() or 0
            if not left or not others:
                break
            services.sleep(STAY_SECONDS)
    return out


def is_nearly_done(folder: StudyFolder, ended: Collection[str]) -> bool:
    """Whether some points have not ended as far as files tell, but only a few, and none waits to be submitted."""
    state = ledger.read(folder)
    return not state.waiting and 0 < len(_some_open(folder, state, ended)) <= FEW


def _some_open(folder: StudyFolder, state: Ledger, ended: Collection[str]) -> list[tuple[str, ledger.Batch]]:
    return list(itertools.islice(_open(folder, state, ended), FEW + 1))


def _open(folder: StudyFolder, state: Ledger, ended: Collection[str]) -> Iterator[tuple[str, ledger.Batch]]:
    """Yield the submitted points that have not ended as far as files tell, and their batches; the last ones first.

    Points of a submission that nobody confirmed do not count: it may be refused yet, or its submitter may be dead.
    """
    for batch in reversed(submitted(state.batches.values())):
        for key in reversed(batch.keys):
            if key not in ended and not (is_over(folder, state, key, batch) or has_ended(folder, key, state)):
                yield key, batch


def has_ended(folder: StudyFolder, key: str, state: Ledger) -> bool:
    """Whether the latest attempt of a point's present submission has written its end."""
    from study.records.attempts import latest_attempt

    run, name = folder.run(key), state.current.get(key)
    attempt = latest_attempt(run) if run.attempts.is_dir() else None
    return attempt is not None and attempt.batch == name and attempt.ended is not None


def is_over(folder: StudyFolder, state: Ledger, key: str, batch: ledger.Batch) -> bool:
    """Whether nothing more follows for a point from this submission: it has its outcome, was cancelled, or stays."""
    if state.current.get(key) != batch.name or key in state.cancelled or folder.run(key).outcome.exists():
        return True
    last = state.ends.get(key, ())[-1:]
    return bool(last) and last[0].batch == batch.name and last[0].action == Action.STOP


def submit_as_last_job(
    folder: StudyFolder,
    services: Services,
    is_last: Callable[[], bool],
    send: Callable[[], int | None],
    is_final: Callable[[ValueError], bool] = lambda error: False,
) -> int:
    """Submit what waits, by `send`, as the last job to end, which tries for a while; return how much went out.

    Jobs that end together may each be the last. One of them stays and the others leave: they count as alive until
    they do, and would wait for each other's room. Raises what `send` raised last, at once where that `is_final`.
    """
    folder.last_job_lock.touch()  # tells the one that stays that there will be more room in a moment
    try:
        with locked(folder.last_job_lock, HAND_OVER_SECONDS):
            left, touched = TRIES, folder.last_job_lock.stat().st_mtime_ns
            while is_last():
                sent = 0
                problem: ValueError | None = None
                try:
                    sent = send() or 0
                except TimeoutError:
                    pass  # another process submits, with a view of before
                except ValueError as error:
                    if is_final(error):
                        raise
                    problem = error
                left, before, touched = left - 1, touched, folder.last_job_lock.stat().st_mtime_ns
                if touched != before:  # also what came while this one slept
                    left = TRIES
                if problem is not None and left <= 0:
                    raise problem
                if sent or left <= 0:
                    return sent
                # Others that ended with this one still count as alive, or hold the lock with a view of before.
                services.sleep(SECONDS)
    except TimeoutError:
        pass
    return 0
