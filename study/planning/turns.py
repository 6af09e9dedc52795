"""Points that follow each other in the lanes of a job: which share one, and how long it takes. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from study.text import counted

WORK_SECONDS = 300.0
"""Training that a job of short points has at least where no device would stand idle for it [s].

On an H200 a job's first point begins to train 10 to 20 s after the job, and SLURM takes seconds more to start one
(benchmarks/results/study_peers_gpu.txt): a tenth of such a job.
"""
LEAST_SECONDS = 60.0
"""Training that a job of short points has at least where a device would stand idle otherwise [s].

The same start of at most 20 s is then at most a quarter of the job. Jobs start side by side, so the study still ends
sooner; with less, most of what another device adds would be starts.
"""


@dataclass(frozen=True)
class Turns:
    """How many short points a job has, and why so many, in words."""

    count: int
    why: str


def too_short(seconds: float) -> bool:
    """Return whether a point that trains for this long [s] is too short for a job of its own."""
    return seconds < WORK_SECONDS


def enough(seconds: Sequence[float], lanes: int, side_by_side: int, room: int | None) -> Turns:
    """Return how many short points share a job: as many jobs as run at once, if each has work enough.

    seconds: training of each. lanes: points that run side by side in a job; it has at least as many. side_by_side:
    lanes that do not share their devices with others. room: jobs of these points that run at once; None: not known.
    """
    work, least = sum(seconds), LEAST_SECONDS * side_by_side
    fewest = max(1, math.ceil(work / (WORK_SECONDS * lanes)))
    count, why = max(lanes, -(-len(seconds) // fewest)), f"up to {WORK_SECONDS:.0f} s in each"
    if room is None:
        why += ", as it is not known how many run at once"
    elif room <= fewest:
        why += f"; room for {room:,} at once"
    else:
        points = f" and {lanes} points" if lanes > 1 else ""
        why = f"room for {room:,} at once, and each should have {least:.0f} s or more{points}"
    for jobs in range(min(room or 0, len(seconds) // lanes, int(work // least)), fewest, -1):
        each = -(-len(seconds) // jobs)
        parts = dealt(seconds, each)
        if all(len(part) >= lanes and sum(seconds[place] for place in part) >= least for part in parts):
            count = each
            break
    made = counted(-(-len(seconds) // count), "job")
    return Turns(count, f"{counted(len(seconds), 'short point')} with {work:,.0f} s of training in {made}: {why}")


def shares(work: Sequence[float]) -> list[float]:
    """Return which part of the jobs that run at once is for each group of short points, by its training [s]."""
    whole = sum(work)
    return [each / whole if whole else 1.0 for each in work]


def dealt(sizes: Sequence[float], points: int) -> list[list[int]]:
    """Return which points share a job, by their places: `points` in each but the last, which has the rest.

    sizes: time of each, in any unit. The longest are dealt first, each to the job that has least to do and room left,
    so that jobs take similar time; each job's are in that order.
    """
    count = -(-len(sizes) // points)
    rooms = [points] * (count - 1) + [len(sizes) - points * (count - 1)]
    jobs: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, job) for job in range(count)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        load, job = heapq.heappop(loads)
        jobs[job].append(index)
        if len(jobs[job]) < rooms[job]:
            heapq.heappush(loads, (load + sizes[index], job))
    return jobs


def alike(sizes: Sequence[float], points: int) -> list[list[int]]:
    """Return which points begin together in a job, by their index, so that those of a job take similar time."""
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    return [order[first : first + points] for first in range(0, len(order), points)]


def longest_lane(seconds: Sequence[float], lanes: int) -> float:
    """Return how long a job takes whose lanes take the next of these points, in this order, when they are free."""
    busy = [0.0] * lanes
    for each in seconds:
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)
