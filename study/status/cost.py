"""What a study costs: device time asked, used, lost to failures and idle, from accounting or from the runs' clocks.

A job that accounting does not know is charged by the clocks of its attempts. Jobs with GPUs are counted in GPU-hours,
others in core-hours.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from study.executors import detached, load, queue, submitted
from study.executors.base import Runner
from study.executors.job_spec import JobSpec
from study.executors.jobs import JobRun
from study.records import ledger
from study.records.last_sign import last_sign
from study.records.point import Point
from study.records.shapes import ATTEMPT_END, JOB
from study.status.states import PointState, PointStatus
from study.storage.layout import RunFolder, StudyFolder
from study.storage.shapes import read_record

GPU, CORE = "GPU-hours", "core-hours"
LOST_STATES = frozenset({PointState.FAILED})
MAY_RUN = frozenset({PointState.QUEUED, PointState.RUNNING, PointState.UNKNOWN})
SLACK_SECONDS = 5.0
"""Clocks of nodes and of the accounting may differ by so much, and the latter counts whole seconds."""


@dataclass(frozen=True)
class Devices:
    """What a job holds while it runs; `slots`: points that share it at any time."""

    gpus: int
    cores: int
    slots: int = 1

    def count(self, unit: str) -> int:
        """Return how many devices of this unit it holds: cores only where it has no GPUs."""
        return self.gpus if unit == GPU else 0 if self.gpus else self.cores


@dataclass(frozen=True)
class Charge:
    """One run of one job on its nodes: a requeued job has several. started: seconds since 1970.

    busy, lost [s]: time of its attempts, and of those that failed, summed over the points that share it. failed, over:
    it has failed, it has ended. clocks: by its attempts' clocks.
    """

    job_id: str
    devices: Devices
    started: float
    seconds: float
    busy: float = 0.0
    lost: float = 0.0
    over: bool = True
    failed: bool = False
    clocks: bool = False

    @property
    def ended(self) -> float:
        """When it ended, or the time of asking [seconds since 1970]."""
        return self.started + self.seconds


@dataclass(frozen=True)
class Cost:
    """What a study has cost and may cost [`unit`].

    asked: time limits of all jobs ever submitted. reserved: of those that wait or run, and of those of unknown state
    until a person retries or cancels their points. used: what jobs have run, failed and requeued ones too. lost: of
    that, attempts that failed, as a whole although checkpoints may have kept a part. idle: of that, no attempt was
    running (start-up, and places of a packed job that ended early); None: unknown. spent: used by what is not reserved
    any more, so that spent + reserved is the most that it can come to. jobs, runs: how many, and how often they ran.
    clocks: jobs that were charged by their attempts' clocks. problems: why figures may be too low.
    """

    unit: str = CORE
    asked: float = 0.0
    reserved: float = 0.0
    used: float = 0.0
    lost: float = 0.0
    idle: float | None = None
    spent: float = 0.0
    jobs: int = 0
    runs: int = 0
    clocks: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempted:
    """One attempt by its own files: its job, when it started and ended [seconds since 1970], and how."""

    key: str
    number: int
    batch: str
    job_id: str
    restart: int
    started: float
    ended: float
    state: str | None


def measure(
    folder: StudyFolder,
    points: Mapping[str, Point],
    statuses: Sequence[PointStatus],
    runner: Runner | None = None,
    *,
    known: ledger.Ledger | None = None,
) -> list[Cost]:
    """Return the cost in each unit that the study's jobs have, from accounting and the attempts' files.

    known: the ledger, for a caller who has read it.
    """
    known = known or ledger.read(folder)
    made = attempts(folder, list(points), time.time())
    charged, problems = accounted(known, runner)
    alive = _alive(known, statuses)
    whole = charge(known, points, charged, made)
    of_search = _live_jobs_of_search(known, whole, runner)
    # What a person has given up may have no end in its files or in accounting: what it used is spent.
    going = of_search | {one.job_id for one in made if one.key in alive.get(one.batch, ())} | _names(known, alive)
    whole = [replace(one, over=one.over or one.job_id not in going) for one in whole]
    found = []
    for unit in units(known):
        asked, reserved = promised(known, alive, unit)
        more = _searches(known, whole, of_search, unit)
        found.append(replace(total(whole, unit), asked=asked + more[0], reserved=reserved + more[1]))
    return [replace(one, problems=problems, idle=None if charged is None else one.idle) for one in found]


def measure_by_clocks(folder: StudyFolder, points: Mapping[str, Point], statuses: Sequence[PointStatus]) -> Cost:
    """Return the cost by the attempts' clocks alone, for a display: no scheduler, and files only of retried points."""
    known = ledger.read(folder)
    unit = units(known)[0]
    used = lost = 0.0
    jobs: dict[tuple[str, int], list[float]] = {}
    held = {name: devices_of(b, None) for name, b in known.batches.items() if detached(b)}
    place = {name: {key: i // b.points for i, key in enumerate(b.keys)} for name, b in known.batches.items()}
    for status in statuses:
        if status.attempt is not None and status.attempt > 1:
            for one in _attempts(folder.run(status.key), status.key, time.time()):
                batch = known.batches.get(one.batch)
                if batch is None or one.number == status.attempt:
                    continue
                hours = (one.ended - one.started) / 3600 * devices_of(batch, points.get(one.key)).count(unit)
                used += hours / batch.lanes
                lost += hours / batch.lanes if one.state in LOST_STATES else 0.0
        batch = known.batches.get(status.batch or "")
        if batch is None or status.seconds is None:
            continue
        hours = status.seconds / 3600 * (held.get(batch.name) or devices_of(batch, points.get(status.key))).count(unit)
        lost += hours / batch.lanes if status.state in LOST_STATES else 0.0
        jobs.setdefault((batch.name, place[batch.name].get(status.key, 0)), []).append(hours)
    # Points of a job hold it together: those side by side as long as the longest, and one after the other in turn.
    used += sum(max(*hours, sum(hours) / known.batches[name].lanes) for (name, _), hours in jobs.items())
    return Cost(unit, *promised(known, _alive(known, statuses), unit), used=used, lost=lost, jobs=len(jobs))


def units(known: ledger.Ledger) -> list[str]:
    """Return the units in which the study's jobs are counted: GPU-hours first, where a job has GPUs."""
    found = {devices_of(batch, None).gpus > 0 for batch in known.batches.values() if batch.abandoned is None}
    return [GPU] * (True in found) + [CORE] * (False in found) or [CORE]


def accounted(known: ledger.Ledger, runner: Runner | None = None) -> tuple[list[Charge] | None, tuple[str, ...]]:
    """Return every run of the study's jobs that accounting knows, requeued ones too; or None, and why."""
    by_executor: dict[str, list[ledger.Batch]] = defaultdict(list)
    for batch in submitted(known.batches.values()):
        by_executor[batch.executor].append(batch)
    charges: list[Charge] = []
    problems: tuple[str, ...] = ()
    for name, batches in by_executor.items():
        runs, said = load(name, runner).accounting(batches)
        if runs is None:
            return None, said
        held = {str(batch.job_id): devices_of(batch, None) for batch in batches}
        charges += [_charge(run, held[run.job_id.partition("_")[0]]) for run in runs]
        problems += said
    return charges, problems


def attempts(folder: StudyFolder, keys: Iterable[str], now: float) -> list[Attempted]:
    """Return every attempt of these points by its own clock. One that was killed outright ended with its last word."""
    return [one for key in keys for one in _attempts(folder.run(key), key, now)]


def charge(
    known: ledger.Ledger, points: Mapping[str, Point], charged: Sequence[Charge] | None, made: Sequence[Attempted]
) -> list[Charge]:
    """Return the runs of jobs with what their attempts did; jobs that `charged` has not, by their attempts' clocks."""
    by_job: dict[str, list[Attempted]] = defaultdict(list)
    for one in made:
        by_job[one.job_id if one.batch in known.batches else ""].append(one)
    by_job.pop("", None)
    whole: list[Charge] = []
    runs: dict[str, list[Charge]] = defaultdict(list)
    for known_run in charged or ():
        runs[known_run.job_id].append(known_run)
    for job_id, several in runs.items():
        for run in several:
            inside = [a for a in by_job.get(job_id, ()) if _within(a, run)]
            whole.append(_busy(run, inside))
    held = {name: devices_of(batch, None) for name, batch in known.batches.items() if detached(batch)}
    for job_id, several_attempts in by_job.items():
        if job_id in runs:
            continue
        by_restart: dict[tuple[int, str], list[Attempted]] = defaultdict(list)
        for one in several_attempts:
            # Local runs have one id a process; points of a packed job share theirs.
            by_restart[one.restart, one.batch].append(one)
        for (_, name), group in by_restart.items():
            holds = held.get(name) or devices_of(known.batches[name], points.get(group[0].key))
            whole.append(_by_clock(holds, group))
    return whole


def total(charges: Sequence[Charge], unit: str) -> Cost:
    """Return the sum of what jobs have used in one unit. Pure."""
    used = lost = idle = spent = 0.0
    mine = [one for one in charges if one.devices.count(unit)]
    for one in mine:
        rate = one.devices.count(unit) / 3600
        used += one.seconds * rate
        spent += one.seconds * rate if one.over else 0.0
        lost += min(one.seconds, one.lost / one.devices.slots) * rate
        idle += max(0.0, one.seconds - one.busy / one.devices.slots - _lost_idle(one)) * rate
    jobs, clocks = {one.job_id for one in mine}, {one.job_id for one in mine if one.clocks}
    return Cost(unit, 0, 0, used, lost, idle, spent, jobs=len(jobs), runs=len(mine), clocks=len(clocks))


def _lost_idle(one: Charge) -> float:
    """Return the seconds that are called lost although no attempt was running: of a job that failed before one."""
    return one.seconds if not one.busy and one.lost else 0.0


def devices(shape: JobSpec) -> Devices:
    """Return what a job of this shape holds while it runs."""
    return Devices(shape.gpus, shape.cores, shape.pack)


def promised(known: ledger.Ledger, alive: Mapping[str, Collection[str]], unit: str) -> tuple[float, float]:
    """Return the time limits of all jobs ever submitted, and of those of points that are `alive`, by batch."""
    asked = reserved = 0.0
    for name, batch in known.batches.items():
        if not detached(batch) or batch.abandoned is not None:
            continue
        shape = JobSpec.read(batch.resources)
        each = shape.hours * devices_of(batch, None).count(unit)
        asked += 0.0 if batch.of_search else shape.jobs(len(batch.keys)) * each
        reserved += len(_places(batch, alive.get(name, ()))) * each
    return asked, reserved


def _alive(known: ledger.Ledger, statuses: Sequence[PointStatus]) -> dict[str, set[str]]:
    """Return, by batch, the points whose jobs may still run. Nobody waits for one that is unknown and not wanted."""
    alive: dict[str, set[str]] = defaultdict(set)
    for status in statuses:
        given_up = status.state == PointState.UNKNOWN and status.key in known.cancelled
        if status.batch in known.batches and status.state in MAY_RUN and not given_up:
            alive[status.batch or ""].add(status.key)
    return alive


def _places(batch: ledger.Batch, keys: Collection[str]) -> set[int]:
    """Return the array indices of the jobs of these keys."""
    return {i // batch.points for i, key in enumerate(batch.keys) if key in keys} if keys else set()


def _names(known: ledger.Ledger, alive: Mapping[str, Collection[str]]) -> set[str]:
    batches = ((known.batches[name], keys) for name, keys in alive.items())
    return {batch.job(place) for batch, keys in batches for place in _places(batch, keys)}


def _live_jobs_of_search(known: ledger.Ledger, charges: Sequence[Charge], runner: Runner | None) -> set[str]:
    """Return the jobs of a search that wait or run: its batches name no points, and accounting none that wait."""
    batches = [batch for batch in submitted(known.batches.values()) if batch.of_search]
    view = queue(batches, runner)
    live = {name for name, job in view.jobs.items() if job.alive}
    if view.complete:
        return live
    ids = {batch.job_id for batch in batches}
    return live | {one.job_id for one in charges if not one.over and one.job_id.partition("_")[0] in ids}


def _searches(known: ledger.Ledger, charges: Sequence[Charge], live: Collection[str], unit: str) -> tuple[float, float]:
    """Return the time limits of a search's jobs: of those that have run or live, and of those that live."""
    each = {
        batch.job_id: JobSpec.read(batch.resources).hours * devices_of(batch, None).count(unit)
        for batch in submitted(known.batches.values())
        if batch.of_search
    }
    asked = {one.job_id for one in charges}.union(live)
    asked_hours, live_hours = (sum(each.get(job.partition("_")[0], 0.0) for job in jobs) for jobs in (asked, live))
    return asked_hours, live_hours


def devices_of(batch: ledger.Batch, point: Point | None) -> Devices:
    """Return what a job of a batch holds by its recorded shape; a local run holds the cores of its processes."""
    if not detached(batch):
        threads = point.config.runtime.threads if point is not None else 1
        return Devices(0, max(1, int(batch.resources.get("tasks") or 1)) * threads)
    return devices(JobSpec.read(batch.resources))


def _charge(run: JobRun, asked: Devices) -> Charge:
    """Return a run by accounting with the devices it held; where that is not recorded, those its job asked for."""
    held = replace(asked, gpus=asked.gpus if run.gpus is None else run.gpus, cores=run.cores or asked.cores)
    lost = run.seconds * held.slots if run.failed else 0.0
    return Charge(run.job_id, held, run.started, run.seconds, lost=lost, over=run.over, failed=run.failed)


def _attempts(run: RunFolder, key: str, now: float) -> list[Attempted]:
    found = []
    try:
        with os.scandir(run.attempts) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return []
    for number in sorted(int(name) for name in names if name.isdigit()):
        attempt = run.attempt(number)
        job = read_record(attempt.job, JOB)
        if job is None or job.get("started") is None:
            continue
        ended = read_record(attempt.outcome, ATTEMPT_END)
        started = float(job["started"])
        if ended is None:
            until = max(started, min(now, last_sign(run, attempt, started)))
        else:  # by its own count where it has one: the clock may have been set meanwhile
            took = ended.get("seconds")
            until = max(started, float(ended.get("ended") or started)) if took is None else started + float(took)
        found.append(
            Attempted(
                key,
                number,
                str(job.get("name", "")),
                str(job.get("job_id", "")),
                int(job.get("restart") or 0),
                started,
                until,
                None if ended is None else str(ended.get("state")),
            )
        )
    return found


def _within(one: Attempted, run: Charge) -> bool:
    return run.started - SLACK_SECONDS <= one.started <= run.ended + SLACK_SECONDS


def _busy(run: Charge, inside: Sequence[Attempted]) -> Charge:
    """Return a run of a job with the time of its attempts; that it failed is charged to the attempts that did."""
    if not inside:
        return run
    spans = [(max(0.0, min(a.ended, run.ended) - max(a.started, run.started)), a) for a in inside]
    lost = sum(span for span, a in spans if a.state in LOST_STATES or (a.state is None and run.failed))
    return replace(run, busy=sum(span for span, _ in spans), lost=lost)


def _by_clock(held: Devices, group: Sequence[Attempted]) -> Charge:
    began, ended = min(a.started for a in group), max(a.ended for a in group)
    over = all(a.state is not None for a in group)
    run = Charge(group[0].job_id, held, began, ended - began, over=over, clocks=True)
    return _busy(run, group)
