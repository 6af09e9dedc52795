"""Points that follow each other in the lanes of a job: which share one, and how long it takes. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

WORK_SECONDS = 300.0
"""Training that a job of short points has at least [s].

On an H200 a job's first point begins to train 10 to 20 s after the job, and SLURM takes seconds more to start one
(benchmarks/results/study_peers_gpu.txt): a tenth of such a job.
"""


def enough(seconds: Sequence[float], lanes: int) -> tuple[list[int], int]:
    """Return which points are too short for a job of their own, by their places, and how many of them a job has.

    seconds: training of each. lanes: points that run side by side in a job; it has at least as many.
    """
    short = [place for place, each in enumerate(seconds) if each < WORK_SECONDS]
    jobs = math.ceil(sum(seconds[place] for place in short) / (WORK_SECONDS * lanes))
    return short, max(lanes, -(-len(short) // max(1, jobs)))


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
