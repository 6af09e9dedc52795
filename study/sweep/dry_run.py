"""What a dry run says of the jobs: scripts, device time asked, when SLURM would start them, why others wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from study.executors import query
from study.executors.base import Executor, JobRequest, Runner, batch_name, chunks
from study.executors.job_spec import JobSpec
from study.planning.plan import StudyPlan
from study.planning.sizing import Sized, in_words
from study.process import code_snapshot
from study.status import budget, cost
from study.status.observer import Observer
from study.status.states import PointState
from study.storage.layout import StudyFolder
from study.text import counted

ESTIMATES = 5
"""Arrays whose start the scheduler is asked to estimate: each is a request to its controller."""


def scripts(
    folder: StudyFolder, executor: Executor, sized: Sequence[Sized], parallel: int, array_limit: int
) -> list[str]:
    """Return the scripts that would be submitted, exact except for the end of the job name; asks no scheduler.

    array_limit: most jobs of one array; 0: the site takes no arrays. There is one script for each shape then, as the
    single jobs of a shape are alike.
    """
    frozen_one = any(one.shape.code == "frozen" for one in sized)
    copy = code_snapshot.would_be(folder, "frozen") if frozen_one else None

    def script(shape: JobSpec, count: int | None, throttle: int | None = None) -> str:
        own = copy if shape.code == "frozen" else None
        return executor.render(JobRequest(folder, shape, name, count, throttle, copy=own))

    name = batch_name(folder.name, "dryrun")
    if not array_limit:
        return [script(one.shape, None) for one in sized]
    arrays = [(one.shape, some) for one in sized for some in chunks(one.keys, array_limit * one.shape.points)]
    throttle = max(1, parallel // max(1, len(arrays)))
    return [script(shape, shape.jobs(len(keys)), throttle) for shape, keys in arrays]


def asked(sized: Sequence[Sized]) -> str:
    """Return what the jobs ask for in total, and how each shape was sized."""
    hours: dict[str, float] = defaultdict(float)
    lines, told = list[str](), set[str]()
    for one in sized:
        unit = cost.GPU if one.shape.gpus else cost.CORE
        jobs = one.shape.jobs(len(one.keys))
        each = one.shape.hours * cost.devices(one.shape).count(unit)
        hours[unit] += jobs * each
        several = "jobs" if jobs != 1 else "job"
        lines.append(f"  {jobs:,} {several}{_points(one)} of {described(one.shape)}: {jobs * each:,.4g} {unit}")
        if one.turns and one.turns not in told:
            told.add(one.turns)
            lines.append(f"    {one.turns}")
        if one.shared:
            lines.append(f"    {one.shared}")
        if one.held is not None:
            who = "point" if one.shared else "GPU"
            lines.append(f"    each {who} is planned to hold {one.held.total / 1e9:,.3g} GB: {in_words(one.held)}")
    head = " and ".join(f"{value:,.4g} {unit}" for unit, value in hours.items())
    why = next((f"; time {one.why}" for one in sized if one.why), "")
    return "\n".join([f"Asked if every job runs to its time limit: {head}{why}", *lines])


def described(shape: JobSpec) -> str:
    """Return a shape in words: 2 nodes x 8 GPUs, 64 cores, 240 GB, 2 h."""
    nodes = f"{shape.nodes} nodes x " if shape.nodes > 1 else ""
    parts = [counted(shape.job_gpus_per_node, "GPU")] if shape.job_gpus_per_node else []
    parts.append(counted(shape.tasks_per_node * shape.job_cpus_per_task, "core"))
    parts += [f"{shape.job_mem_gb:g} GB"] if shape.job_mem_gb else []
    return nodes + ", ".join([*parts, f"{shape.time_minutes} min"])


def outlook(
    plan: StudyPlan, executor: Executor, sized: Sequence[Sized], texts: Sequence[str], runner: Runner | None = None
) -> list[str]:
    """Return the scheduler's estimate of when the first arrays start, why points wait now, and the study's budget."""
    lines = list(dict.fromkeys(said for text in texts[:ESTIMATES] if (said := executor.estimate(text))))
    if plan.folder.ledger.exists():
        observer = Observer(plan.folder, lambda batches: query(batches, runner))
        observer.refresh()
        statuses = observer.statuses()
        lines += waiting([status.why or "not said" for status in statuses if status.state == PointState.QUEUED])
        seen = (observer.points, statuses)
    else:
        seen = ({}, [])
    shapes = [(one.shape, one.shape.jobs(len(one.keys))) for one in sized]
    found = budget.balances(plan.folder, plan.config.study, shapes, seen, runner)
    return [*lines, *(str(one) if one.fits else f"would be refused: {one.refusal()}" for one in found)]


def waiting(reasons: Sequence[str]) -> list[str]:
    """Return a line on why points wait in the queue; empty where none waits."""
    counts = Counter(reasons).most_common()
    said = ", ".join(f"{reason} ({count:,})" for reason, count in counts)
    return [f"{len(reasons):,} points of this study wait in the queue: {said}"] if reasons else []


def _points(one: Sized) -> str:
    if one.shape.points == 1:
        return ""
    at_once = "one after the other" if one.shape.pack == 1 else f"{one.shape.pack} at a time"
    turns = f", {min(one.shape.points, len(one.keys))} in a job, {at_once}," if one.shape.takes_turns else ""
    return f" for {counted(len(one.keys), 'point')}{turns}"
