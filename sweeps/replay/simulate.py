"""The replay: workers, a virtual clock and recorded curves around the same scheduler objects that run live."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sweeps.history import Ended, Measured, Reported, Started, Unit
from sweeps.schedulers.base import Scheduler

Floats = NDArray[np.float64]
STARTS = 3
"""Starts after which their cost counts as measured, for schedulers that choose by it."""


@dataclass(frozen=True)
class Cluster:
    """What the trials run on. startup: cost of starting or resuming a trial on a worker [epochs of mean cost].

    failures: probability that a unit is lost with its worker, at a moment drawn evenly from its time; it begins again
    from the checkpoint before it. seed: of these draws.
    """

    workers: int = 8
    startup: float = 0.0
    failures: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Segment:
    """One unit as it ran: epochs first+1 … last of a configuration, the first beginning at `begin` [epochs]."""

    trial: int
    configuration: int
    first: int
    last: int
    begin: float
    cost: float


@dataclass
class Run:
    """What happened in a replay: the segments and the time at which it was cut off [epochs]."""

    segments: list[Segment] = field(default_factory=list)
    until: float = 0.0

    def best_seen(self, curves: Floats, time: float) -> float:
        """Return the lowest value seen at any epoch that was over by `time`; inf before the first."""
        best = float("inf")
        for part in self.segments:
            done = min(part.last, part.first + int((time - part.begin) / part.cost + 1e-9))
            if done > part.first:
                seen = curves[part.configuration, part.first : done]
                lowest = float(np.min(np.where(np.isfinite(seen), seen, np.inf)))
                best = min(best, lowest)
        return best


def replay(
    scheduler: Scheduler,
    curves: Floats,
    choose: Callable[[int], int],
    until: float,
    *,
    cluster: Cluster = Cluster(),
    cost: Sequence[float] | Floats | None = None,
) -> Run:
    """Run a scheduler against curves (configurations x resource) until the clock reaches `until` [epochs of mean cost].

    choose: from a new trial's number to the configuration it tries, called once a trial.
    cost: of one epoch of each configuration; 1 where not given.
    """
    run = Run(until=until)
    chosen: dict[int, int] = {}
    at: dict[int, int] = {}
    idle = [(0.0, number) for number in range(cluster.workers)]
    busy: list[tuple[float, int, int, Unit, bool]] = []
    order = 0
    chance = random.Random(cluster.seed)
    last: dict[int, int] = {}
    while idle or busy:
        taken = 0
        for now, worker in idle:
            unit = scheduler.decide()
            if unit is None:  # nor is there one for any other, before something else happens
                break
            taken += 1
            scheduler.apply(Started(unit))
            if unit.trial not in chosen:
                chosen[unit.trial] = choose(unit.trial)
            configuration = chosen[unit.trial]
            each = 1.0 if cost is None else float(cost[configuration])
            first = at.get(unit.trial, 0)
            begin = now + (0.0 if last.get(worker) == unit.trial else cluster.startup)
            lost = cluster.failures > 0 and chance.random() < cluster.failures
            length = (unit.until - first) * (chance.random() if lost else 1.0)
            done = first + int(length) if lost else unit.until
            run.segments.append(Segment(unit.trial, configuration, first, done, begin, each))
            heapq.heappush(busy, (begin + length * each, order, worker, unit, lost))
            order += 1
            if order == STARTS and cluster.startup > 0:  # as a live search measures it
                scheduler.apply(Measured(cluster.startup / curves.shape[1]))
            last[worker] = -1 if lost else unit.trial  # whoever takes it up again starts anew
        if not busy:
            return run
        end, _, worker, unit, lost = heapq.heappop(busy)
        if end > until:
            return run
        idle = [*((end, waiting) for _, waiting in idle[taken:]), (end, worker)]
        if lost:
            scheduler.apply(Ended(unit.trial, "lost"))
            continue
        at[unit.trial] = unit.until
        scheduler.apply(Reported(unit.trial, unit.until, float(curves[chosen[unit.trial], unit.until - 1])))
        scheduler.apply(Ended(unit.trial, "reached"))
    return run
