"""Submitting what waits in the ledger, as far as the scheduler's limits leave room. Safe to be killed and repeated.

Whoever holds the submit lock may do it: the command that made the points, any later command, and the study's own jobs
as they end. So nothing has to stay alive on the login node.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from study.executors.base import QueueLimits, Runner, SubmitError, batch_name, chunks
from study.executors.job_spec import Shape
from study.executors.slurm import query, site
from study.reconcile import dependencies
from study.reconcile.two_phase import Outside, Request, send
from study.records import ledger
from study.records.ledger import Ledger, Waiting
from study.records.settings import reference
from study.status import budget
from study.storage.files import locked, read_json, write_json
from study.storage.layout import StudyFolder
from study.text import counted

PACE_SECONDS = 30.0
"""How often the jobs of a study ask for room as they end, all of them together."""
FEW_PACE_SECONDS = 10.0
"""The same where at most `FEW` points are left in the queue: short jobs would run out before the next look."""
SINGLES = 60
"""Jobs that are no array are submitted so many at a time: a busy controller takes a second for each."""
FEWEST = 20
"""Jobs look for room of at least this part of the tightest limit: an array of a few is not worth a submission."""
FEW = 20
"""Jobs that leave at most so many points ask SLURM after these: they may be the last to ask."""


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


@dataclass(frozen=True)
class Plan:
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
) -> Plan:
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
        shape = Shape.read(asked.resources)
        if alive.jobs and asked.parallel is not None and asked.parallel - alive.throttles < max(1, asked.parallel // 4):
            whys.append(f"cluster.array_parallelism={asked.parallel:,} is used by the jobs there are")
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
        fitting.append((asked, job, list(chunks(keys[: left * shape.pack], max(1, most) * shape.pack))))
    count = sum(len(arrays) for _, _, arrays in fitting)
    parts = []
    for asked, job, arrays in fitting:
        for array in arrays:
            jobs = Shape.read(asked.resources).jobs(len(array))
            share = jobs if asked.parallel is None else max(1, (asked.parallel - alive.throttles) // count)
            parts.append(Part(array, asked, min(share, jobs), job, array=most > 0))
    return Plan(tuple(parts), whys[0] if whys else "")


def _one_by_one(wanted: int, taken: int, parallel: int | None, alive: _Alive) -> tuple[int, str]:
    """Return how many of these jobs go out now where each is submitted by itself, and why no more."""
    free = wanted if parallel is None else max(0, parallel - alive.throttles - taken)
    if free < min(wanted, SINGLES - taken):
        return free, f"cluster.array_parallelism={parallel:,} is used by the jobs there are"
    return min(wanted, SINGLES - taken), f"{SINGLES} jobs are submitted at a time where SLURM takes no arrays"


def feed(
    folder: StudyFolder,
    outside: Outside,
    held: Mapping[str, str],
    after: Mapping[str, str] | None = None,
    *,
    sparing: bool = False,
) -> int:
    """Submit what waits and fits; return how many points went out. For the holder of the submit lock.

    Nothing goes out that the study's budget does not cover to its time limit.

    Raises ValueError (a SubmitError) where the scheduler refuses for good, or nobody knows whether it accepted.
    """
    state = ledger.read(folder)
    if not state.waiting:
        return 0
    if full := _disk_was_full(folder, state):
        return _all_wait(folder, outside, full, len(state.waiting), sparing)
    seen = site.look(outside.runner, folder.limits, outside.clock())
    if "command not found" in seen.problem and not sparing:
        raise ValueError(
            "cluster.executor=slurm, but squeue is not on PATH: run this on a login node, or take cluster=local"
        )
    if seen.problem:
        why = f"the scheduler gave no answer ({seen.problem})"
        return _all_wait(folder, outside, why, len(state.waiting), sparing)
    gone = {key for key, job in (after or {}).items() if not dependencies.lives(job, seen.alive)}
    held = {**held, **dict.fromkeys(gone, "its parent's job has ended")}
    over = settled(folder, state, seen)
    decided = plan(state, seen, held, after=after, sparing=sparing, over=over)
    out, singles, why = 0, 0, decided.why
    purse = budget.purse(folder, outside.runner) if decided.parts else None
    for part in decided.parts:
        shape = Shape.read(part.asked.resources)
        short = purse.take(shape, shape.jobs(len(part.keys))) if purse is not None else ""
        if short:
            why = short
            continue
        refused = _send(folder, part, outside, patient=not sparing)
        if refused:
            why = refused
            break
        out += len(part.keys)
        singles += not part.array
    if out:
        _cancel_late(folder, [key for part in decided.parts for key in part.keys], outside)
    if singles:
        outside.say(
            f"submitted {counted(out, 'point')} as {counted(singles, 'single job')}: SLURM takes no arrays here"
        )
    left = len(state.waiting) - out
    _note(folder, outside, why, left)
    if left and out:
        outside.say(f"{_waits(left)} ({why}): any later command and the jobs themselves submit them")
    elif left and not sparing:
        outside.say(f"{_waits(left)}: {why}")
    return out


def _all_wait(folder: StudyFolder, outside: Outside, why: str, waiting: int, sparing: bool) -> int:
    """Write down why nothing goes out, and say it where a person asked; return 0."""
    _note(folder, outside, why, waiting)
    if not sparing:
        outside.say(f"{_waits(waiting)}: {why}")
    return 0


def _disk_was_full(folder: StudyFolder, state: Ledger) -> str:
    """Return why nothing more goes out: a point ended on a full disk and was not tried again; "" where none did."""
    for key, ends in state.ends.items():
        last = ends[-1] if ends else None
        if last is None or (last.kind, last.action) != ("disk_full", "stop"):
            continue
        if key not in state.waiting and key not in state.cancelled and state.current.get(key) == last.batch:
            return f"the disk was full when {key} ended: make room, then python -m study retry {reference(folder)}"
    return ""


def _cancel_late(folder: StudyFolder, keys: Collection[str], outside: Outside) -> None:
    """Cancel jobs just submitted whose points were cancelled meanwhile; whoever did that could not see their jobs."""
    from study.executors.slurm import sbatch

    known = ledger.read(folder)
    indices = known.unwanted_jobs(known.cancelled.intersection(keys))
    try:
        if indices:
            sbatch.cancel(indices, outside.runner)
    except SubmitError as error:
        outside.say(f"{error}: they find that they are not wanted as they begin")


def _send(folder: StudyFolder, part: Part, outside: Outside, *, patient: bool) -> str:
    """Submit one array or job; return why it was refused for now, "" where it went out."""
    shape = replace(Shape.read(part.asked.resources), dependency=part.dependency)
    jobs = shape.jobs(len(part.keys)) if part.array else None
    request = Request(batch_name(folder.name), shape, jobs, part.keys, part.asked.code, part.throttle)
    sent = send(folder, request, outside, patient=patient)
    if part.array and not sent.full:
        outside.say(f"submitted {counted(len(part.keys), 'point')} as job array {sent.job_id} ({request.name})")
    return sent.full


def is_time(folder: StudyFolder, now: float, every: float) -> bool:
    """Whether the scheduler was last asked for room at least `every` seconds ago."""
    noted = read_json(folder.feed) or {}
    when = noted.get("time")
    return not isinstance(when, int | float) or not 0 <= now - when < every


def pace(folder: StudyFolder, state: Ledger, ended: Collection[str]) -> float:
    """Return how long jobs that end wait after anybody asked for room [s]: less where the queue runs dry soon."""
    left = len(list(itertools.islice(_open(folder, state, ended), FEW + 1)))
    return PACE_SECONDS if left > FEW else FEW_PACE_SECONDS


def others_live(folder: StudyFolder, state: Ledger, ended: Collection[str], runner: Runner = query.run) -> bool:
    """Whether a job of the study is left that submits what waits as it ends.

    Where files leave only a few points of which that may be true, SLURM is asked: a job that was killed outright, or
    cancelled before it began, wrote nothing. Where it gives no answer they may all live.
    """
    left = list(itertools.islice(_open(folder, state, ended), FEW + 1))
    if not 0 < len(left) <= FEW:
        return bool(left)
    places = {batch.job(batch.task(key)) for key, batch in left}
    ids = sorted({str(batch.job_id) for _, batch in left})
    view = query.read_squeue(runner(query.squeue_command(ids)))
    jobs = (view.jobs[place] for place in places if place in view.jobs)
    # What SLURM clears away has written its end, or never will.
    return not view.complete or any(job.state in ("queued", "running") and job.word != "COMPLETING" for job in jobs)


def few_left(folder: StudyFolder, ended: Collection[str]) -> bool:
    """Whether some points have not ended as far as files tell, but only a few, and none waits to be submitted."""
    state = ledger.read(folder)
    return not state.waiting and 0 < len(list(itertools.islice(_open(folder, state, ended), FEW + 1))) <= FEW


def _open(folder: StudyFolder, state: Ledger, ended: Collection[str]) -> Iterator[tuple[str, ledger.Batch]]:
    """Yield the submitted points that have not ended as far as files tell, and their batches; the last ones first.

    Points of a submission that nobody confirmed do not count: it may be refused yet, or its submitter may be dead.
    """
    for batch in reversed(list(state.batches.values())):
        if batch.executor != "slurm" or batch.job_id is None or batch.abandoned is not None:
            continue
        for key in reversed(batch.keys):
            if key not in ended and not (_is_settled(folder, state, key, batch) or has_ended(folder, key, state)):
                yield key, batch


def has_ended(folder: StudyFolder, key: str, state: Ledger) -> bool:
    """Whether the latest attempt of a point's present submission has written its end."""
    from study.records.attempts import latest_attempt

    run, name = folder.run(key), state.current.get(key)
    attempt = latest_attempt(run) if run.attempts.is_dir() else None
    return attempt is not None and attempt.batch == name and attempt.ended is not None


def _waits(count: int) -> str:
    return f"{counted(count, 'point')} wait{'s' * (count == 1)}"


def _note(folder: StudyFolder, outside: Outside, why: str, waiting: int) -> None:
    write_json(folder.feed, {"time": outside.clock(), "why": why, "waiting": waiting})


@dataclass(frozen=True)
class _Alive:
    jobs: int
    throttles: int


def settled(folder: StudyFolder, state: Ledger, seen: QueueLimits) -> set[str]:
    """Return the last jobs of their submissions that live though nothing runs in them any more, to submit others.

    Each would wait for the rest. A job that SLURM starts again has attempts that ended, and lives: what counts is how
    its points ended for good.
    """
    last = [b for b in state.batches.values() if seen.alive.get(b.job_id or "", 0) == 1]
    return {b.job_id or "" for b in last if b.keys and all(_is_settled(folder, state, key, b) for key in b.keys)}


def _is_settled(folder: StudyFolder, state: Ledger, key: str, batch: ledger.Batch) -> bool:
    if state.current.get(key) != batch.name or key in state.cancelled or folder.run(key).outcome.exists():
        return True
    last = state.ends.get(key, ())[-1:]
    return bool(last) and last[0].batch == batch.name and last[0].action == "stop"


def _alive(state: Ledger, seen: QueueLimits, over: Collection[str]) -> _Alive:
    """Return how many jobs of the study live, and how many of them may run at once."""
    jobs = throttles = 0
    for batch in state.batches.values():
        if batch.job_id in over:
            continue
        count = seen.alive.get(batch.job_id or "", 0) if batch.executor == "slurm" else 0
        jobs += count
        throttles += count if batch.throttle is None else min(count, batch.throttle)
    return _Alive(jobs, throttles)


def _kinds(
    state: Ledger, held: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[Waiting, str | None, list[str]]]:
    """Yield the keys that wait by what they are to be submitted with, in order; `why` makes no difference."""
    groups: dict[str, tuple[Waiting, str | None, list[str]]] = {}
    for key, asked in state.waiting.items():
        if key not in held:
            job = after.get(key)
            name = json.dumps([asked.resources, asked.code, asked.parallel, job], sort_keys=True)
            groups.setdefault(name, (asked, job, []))[2].append(key)
    yield from groups.values()


TRIES, SECONDS = 12, 3.0
HAND_OVER_SECONDS = 0.5
"""How long a last job waits for another one that is about to give up."""


def as_the_last(
    folder: StudyFolder,
    outside: Outside,
    is_last: Callable[[], bool],
    send: Callable[[], int | None],
    is_final: Callable[[ValueError], bool] = lambda error: False,
) -> int:
    """Submit what waits, by `send`, as the last job to end, which tries for a while; return how much went out.

    Jobs that end together may each be the last. One of them stays and the others leave: they count as alive until
    they do, and would wait for each other's room. Raises what `send` raised last, at once where that `is_final`.
    """
    folder.last.touch()  # tells the one that stays that there will be more room in a moment
    try:
        with locked(folder.last, HAND_OVER_SECONDS):
            left, heard = TRIES, folder.last.stat().st_mtime_ns
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
                left, before, heard = left - 1, heard, folder.last.stat().st_mtime_ns
                if heard != before:  # also what came while this one slept
                    left = TRIES
                if problem is not None and left <= 0:
                    raise problem
                if sent or left <= 0:
                    return sent
                # Others that ended with this one still count as alive, or hold the lock with a view of before.
                outside.sleep(SECONDS)
    except TimeoutError:
        pass
    return 0
