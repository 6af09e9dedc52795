"""Points that run one after the other in a job's lanes: which points share a job, and how long it takes. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from study.text import counted

WORK_SECONDS = 300.0
"""Least training of a job of short points, if no device is idle because of it [s].

On an H200 a job's first point begins to train 10 to 20 s after the job, and SLURM takes seconds more to start one
(benchmarks/results/study_peers_gpu.txt): a tenth of such a job.
"""
LEAST_SECONDS = 60.0
"""Least training of a job of short points, if a device would be idle with fewer jobs [s].

The same start of at most 20 s is then at most a quarter of the job. Jobs start side by side, so the study still ends
sooner; with less, most of what another device adds would be starts.
"""


@dataclass(frozen=True)
class Turns:
    """How many short points a job has, and why, in words."""

    count: int
    why: str


def too_short(seconds: float) -> bool:
    """Return whether a point that trains for this long [s] is too short for a job of its own."""
    return seconds < WORK_SECONDS


def enough(seconds: Sequence[float], lanes: int, side_by_side: int, room: int | None) -> Turns:
    """Return how many short points share a job: there are as many jobs as run at once, if each has enough work.

    seconds: training of each point. lanes: points that run side by side in a job, and the fewest that it has.
    side_by_side: lanes with devices of their own. room: jobs of these points that run at once; None: not known.
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
    """Return the share of the jobs that run at once that each group of short points gets, by its training [s]."""
    whole = sum(work)
    return [each / whole if whole else 1.0 for each in work]


def dealt(sizes: Sequence[float], points: int) -> list[list[int]]:
    """Return the indices of the points in each job: `points` in each but the last, which has the rest.

    sizes: time of each point, in any unit. The longest are dealt first, each to the job with the least work that has
    room, so that jobs take similar time; the points of a job are in that order.
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
    """Return the indices of the points that start together in a job, so that they take similar time."""
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    return [order[first : first + points] for first in range(0, len(order), points)]


def longest_lane(seconds: Sequence[float], lanes: int) -> float:
    """Return how long a job takes if each lane takes the next of these points, in this order, when it is free."""
    busy = [0.0] * lanes
    for each in seconds:
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)
