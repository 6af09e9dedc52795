"""Submitting what waits in the ledger, as far as the scheduler's limits leave room. Safe to be killed and repeated.

Whoever holds the submit lock may do it: the command that made the points, any later command, and the study's own jobs
as they end. So nothing has to stay alive on the login node.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from study.executors import cancel
from study.executors.base import Executor, QueueLimits, SubmitError, batch_name, chunks
from study.executors.job_spec import JobSpec
from study.reconcile import dependencies, disk
from study.reconcile.last_job import is_over
from study.reconcile.services import Services
from study.reconcile.two_phase import Request, send
from study.records import ledger
from study.records.ledger import UNIT, Ledger, Waiting
from study.status import budget
from study.storage.files import write_json
from study.storage.layout import StudyFolder
from study.text import counted

SINGLES = 60
"""Single jobs submitted at a time where arrays are off: a busy controller takes a second for each."""
FEWEST = 20
"""Jobs that end submit only once 1/FEWEST of the tightest limit is free, rather than many small arrays."""


@dataclass(frozen=True)
class Part:
    """One array that is to be submitted: its keys, at most `throttle` of its jobs at once, after which other job.

    array: False for one job that is no array.
    """

    keys: tuple[str, ...]
    asked: Waiting
    throttle: int
    dependency: str | None = None
    array: bool = True

    @property
    def of_search(self) -> bool:
        """Whether its keys are units of a search."""
        return UNIT in self.asked.resources


@dataclass(frozen=True)
class DispatchPlan:
    """What is to be submitted now, and why the rest waits."""

    parts: tuple[Part, ...]
    why: str = ""


def plan(
    state: Ledger,
    seen: QueueLimits,
    held: Mapping[str, str],
    *,
    after: Mapping[str, str] | None = None,
    sparing: bool = False,
    over: Collection[str] = (),
) -> DispatchPlan:
    """Return the arrays that fit now. Pure.

    `held`: keys that may not go out yet, with why. `after`: keys that go out with a dependency. `sparing`: leave room
    that is too small to be worth a submission, unless little of the study is alive; what its own jobs do as they end.
    Where the site takes no arrays, whose throttle would hold jobs back, no more jobs go out than may run at once.
    `over`: jobs and arrays of which SLURM still has one, and whose points have all ended.
    """
    alive = _alive(state, seen, over)
    most, taken = seen.array_limit, 0
    fitting: list[tuple[Waiting, str | None, list[tuple[str, ...]]]] = []
    whys = [why for key, why in held.items() if key in state.waiting]
    for asked, job, keys in _kinds(state, held, after or {}):
        shape = JobSpec.read(asked.resources)
        if alive.jobs and asked.parallel is not None and asked.parallel - alive.throttles < max(1, asked.parallel // 4):
            whys.append(f"cluster.array_parallelism={asked.parallel:,} is used up by the jobs that wait or run")
            continue
        wanted = left = shape.jobs(len(keys))
        if not most:
            left, why = _one_by_one(wanted, taken, asked.parallel, alive)
            whys += [why] * (left < wanted)
        cap = seen.tightest(shape)
        if cap is not None:
            fits = min(left, max(0, cap.left - taken))
            if sparing and fits < min(left, cap.most // FEWEST, alive.jobs):
                fits = 0
            if fits < left:
                left = fits
                whys.append(f"{cap.what} is {cap.most:,}, and {cap.used + taken + left:,} are used")
        taken += left
        fitting.append((asked, job, list(chunks(keys[: left * shape.points], max(1, most) * shape.points))))
    count = sum(len(arrays) for _, _, arrays in fitting)
    parts = []
    for asked, job, arrays in fitting:
        for array in arrays:
            jobs = JobSpec.read(asked.resources).jobs(len(array))
            share = jobs if asked.parallel is None else max(1, (asked.parallel - alive.throttles) // count)
            parts.append(Part(array, asked, min(share, jobs), job, array=most > 0))
    return DispatchPlan(tuple(parts), whys[0] if whys else "")


def _one_by_one(wanted: int, taken: int, parallel: int | None, alive: _Alive) -> tuple[int, str]:
    """Return how many of these jobs go out now where each is submitted by itself, and why no more."""
    free = wanted if parallel is None else max(0, parallel - alive.throttles - taken)
    if free < min(wanted, SINGLES - taken):
        return free, f"cluster.array_parallelism={parallel:,} is used up by the jobs that wait or run"
    return min(wanted, SINGLES - taken), f"{SINGLES} jobs are submitted at a time where SLURM takes no arrays"


def dispatch(folder: StudyFolder, services: Services, *, sparing: bool = False) -> int:
    """Submit what waits and fits, parents before the branches whose jobs wait for them; return how many went out.

    For the holder of the submit lock. Nothing goes out that the study's budget does not cover to its time limit.
    Raises ValueError (a SubmitError) where the scheduler refuses for good, or nobody knows whether it accepted.
    """
    known, out = ledger.read(folder), 0
    if dependencies.take_back(folder, services, known):
        known = ledger.read(folder)
    while True:
        after, held = dependencies.relations(folder, known)
        there = (services.executor(name) for name in sorted({asked.executor for asked in known.waiting.values()}))
        sent = sum(_submit_what_fits(folder, services, known, one, held, after=after, sparing=sparing) for one in there)
        out += sent
        if not sent or not held:
            return out
        known = ledger.read(folder)


def _submit_what_fits(
    folder: StudyFolder,
    services: Services,
    known: Ledger,
    executor: Executor,
    held: Mapping[str, str],
    *,
    after: Mapping[str, str],
    sparing: bool,
) -> int:
    """Submit what waits for an executor, may go out and fits; return how many points went out."""
    waiting = {key: asked for key, asked in known.waiting.items() if asked.executor == executor.name}
    state = replace(known, waiting=waiting)
    if full := disk.no_room(folder, state):
        return _all_wait(folder, services, full, state, sparing)
    seen = executor.limits(folder.limits, services.clock())
    if "command not found" in seen.problem and not sparing:
        raise ValueError(
            "cluster.executor=slurm, but squeue is not on PATH: run this on a login node, or take cluster=local"
        )
    if seen.problem:
        why = f"the scheduler gave no answer ({seen.problem})"
        return _all_wait(folder, services, why, state, sparing)
    alive = _own_jobs(state, seen)
    gone = {key for key, job in after.items() if not dependencies.lives(job, alive)}
    held = {**held, **dict.fromkeys(gone, "its parent's job has ended"), **disk.held_back(folder, state)}
    over = jobs_to_ignore(folder, state, seen)
    decided = plan(state, seen, held, after=after, sparing=sparing, over=over)
    out, singles, why = 0, 0, decided.why
    remaining = budget.remaining_budget(folder, services.runner) if decided.parts else None
    for part in decided.parts:
        shape = JobSpec.read(part.asked.resources)
        short = remaining.take(shape, shape.jobs(len(part.keys))) if remaining is not None else ""
        if short:
            why = short
            continue
        refused = _send(folder, part, services, patient=not sparing)
        if refused:
            why = refused
            break
        out += len(part.keys)
        singles += not part.array
    if out:
        _cancel_late(folder, [key for part in decided.parts for key in part.keys], services)
    if singles:
        services.report(
            f"submitted {counted(out, _noun(state))} as {counted(singles, 'single job')}: SLURM takes no arrays here"
        )
    left = len(state.waiting) - out
    _note(folder, services, why, left)
    if left and out:
        services.report(f"{_waits(state, left)} ({why}): any later command and the jobs themselves submit them")
    elif left and not sparing:
        services.report(f"{_waits(state, left)}: {why}")
    return out


def _all_wait(folder: StudyFolder, services: Services, why: str, state: Ledger, sparing: bool) -> int:
    """Write down why nothing goes out, and say it where a person asked; return 0."""
    _note(folder, services, why, len(state.waiting))
    if not sparing:
        services.report(f"{_waits(state, len(state.waiting))}: {why}")
    return 0


def _cancel_late(folder: StudyFolder, keys: Collection[str], services: Services) -> None:
    """Cancel jobs just submitted whose points were cancelled meanwhile; whoever did that could not see their jobs."""
    known = ledger.read(folder)
    try:
        cancel(known, known.cancelled.intersection(keys), services.runner)
    except SubmitError as error:
        services.report(f"{error}: these jobs end as they start")


def _send(folder: StudyFolder, part: Part, services: Services, *, patient: bool) -> str:
    """Submit one array or job; return why it was refused for now, "" where it went out."""
    shape = replace(JobSpec.read(part.asked.resources), dependency=part.dependency)
    jobs = shape.jobs(len(part.keys)) if part.array else None
    module, also = ("study.workers.worker", {UNIT: True}) if part.of_search else ("study.job", {})
    name = batch_name(folder.name)
    request = Request(
        name, shape, jobs, part.keys, part.asked.code, part.throttle, module, also, executor=part.asked.executor
    )
    sent = send(folder, request, services, patient=patient)
    if part.array and not sent.full:
        count = counted(len(part.keys), "unit" if part.of_search else "point")
        services.report(f"submitted {count} as job array {sent.job_id} ({request.name})")
    return sent.full


def _noun(state: Ledger) -> str:
    return "unit" if any(UNIT in asked.resources for asked in state.waiting.values()) else "point"


def _waits(state: Ledger, count: int) -> str:
    return f"{counted(count, _noun(state))} wait{'s' * (count == 1)}"


def _note(folder: StudyFolder, services: Services, why: str, waiting: int) -> None:
    with suppress(OSError):  # it only explains: what it is about has happened
        write_json(folder.queue_note, {"time": services.clock(), "why": why, "waiting": waiting})


@dataclass(frozen=True)
class _Alive:
    jobs: int
    throttles: int


def jobs_to_ignore(folder: StudyFolder, state: Ledger, seen: QueueLimits) -> set[str]:
    """Return the last jobs of their submissions that live though nothing runs in them any more, to submit others.

    Each would wait for the rest. A job that SLURM starts again has attempts that ended, and lives: what counts is how
    its points ended for good.
    """
    alive = _own_jobs(state, seen)
    last = [b for b in state.own_batches if alive.get(b.job_id or "", 0) == 1]
    return {b.job_id or "" for b in last if b.keys and all(is_over(folder, state, key, b) for key in b.keys)}


def _own_jobs(state: Ledger, seen: QueueLimits) -> dict[str, int]:
    """Return the user's jobs that wait or run, by id, but those that have an id of the study under another name."""
    names = {"", *(batch.name for batch in state.own_batches)}
    return {i: count for i, count in seen.alive.items() if seen.names.get(i, "") in names}


def _alive(state: Ledger, seen: QueueLimits, over: Collection[str]) -> _Alive:
    """Return how many jobs of the study live, and how many of them may run at once."""
    jobs = throttles = 0
    alive = _own_jobs(state, seen)
    for batch in state.own_batches:
        if batch.job_id in over:
            continue
        count = alive.get(batch.job_id or "", 0)
        jobs += count
        throttles += count if batch.throttle is None else min(count, batch.throttle)
    return _Alive(jobs, throttles)


def _kinds(
    state: Ledger, held: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[Waiting, str | None, list[str]]]:
    """Yield the keys that wait by what they are to be submitted with, in order; `why` makes no difference."""
    groups: dict[str, tuple[Waiting, str | None, list[str]]] = {}
    going = (key for key in state.waiting if key not in held)
    for (asked, job), keys in groupby(going, lambda key: (state.waiting[key], after.get(key))):
        name = json.dumps([asked.resources, asked.code, asked.parallel, job], sort_keys=True)
        groups.setdefault(name, (asked, job, []))[2].extend(keys)
    yield from groups.values()
