"""One simulation of a search: its own scheduler and budgets, with losses and a speed that are made up. Pure."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from study.search.settings import Settings
from study.search.usage import DeviceTime
from sweeps.history import Ended, Reported, Started, Unit

Value = Callable[[int, int], float]


@dataclass(frozen=True)
class Pace:
    """How fast a worker is: FLOP/s while it trains, and how long starting a unit takes at least [s]."""

    rate: float
    start: float = 0.0


@dataclass(frozen=True)
class Course:
    """The result of one simulation.

    started, finished: trials; units: handed out; flops: trained; clock: when the last one ended, by the FLOPs of one
    worker; first: FLOPs handed out when the first trial was trained to the end, infinity where none was.
    """

    started: int
    finished: int
    units: int
    flops: float
    clock: float
    first: float


def course(
    settings: Settings,
    flops_per_token: float,
    workers: int,
    value: Value,
    most: int,
    *,
    pace: Pace | None = None,
    to_first: bool = False,
) -> Course:
    """Run a search's scheduler to its end, or until it has handed out `most` units.

    pace: what GPU-hours are counted by; None: they are not. to_first: only until a trial was trained to the end.
    """
    return _Simulation(settings, flops_per_token, value, pace).run(workers, most, to_first)


def by_chance(seed: int) -> Value:
    """Return random losses, half the trial's own, half drawn at each rung: early losses predict later ones in part."""
    chance = random.Random(seed)
    own: dict[int, float] = {}
    return lambda trial, resource: own.setdefault(trial, chance.gauss()) + chance.gauss()


def ever_better() -> Value:
    """Return losses each lower than all before it: every report is the best so far."""
    reports = iter(range(10**9))
    return lambda trial, resource: -float(next(reports))


@dataclass(frozen=True, order=True)
class _Running:
    """A unit under way until `end` [FLOPs of one worker]; took: of its worker [s]; limited: it hits its limit."""

    end: float
    number: int
    unit: Unit
    cost: float
    took: float = 0.0
    limited: bool = False


class _Simulation:
    def __init__(self, settings: Settings, flops_per_token: float, value: Value, pace: Pace | None) -> None:
        self.settings, self.price, self.value, self.pace = settings, flops_per_token, value, pace
        self.scheduler = settings.make_scheduler().for_forecast()
        self.usage = DeviceTime(None if pace is None else settings.gpu_hours, settings.devices, settings.R)
        self.most_trials = settings.make_space().size
        self.at: dict[int, int] = {}
        self.saved: dict[int, float] = {}
        """FLOPs of a trial's unit that are in its checkpoint, its worker having run into its limit."""
        self.busy: list[_Running] = []
        self.units, self.spent, self.trained, self.clock, self.first = 0, 0.0, 0.0, 0.0, math.inf

    def run(self, workers: int, most: int, to_first: bool) -> Course:
        while True:
            while len(self.busy) < workers and self.units < most and (unit := self._wanted()) is not None:
                self._begin(unit)
            if not self.busy or (to_first and self.first < math.inf):
                finished = sum(resource >= self.settings.R for resource in self.at.values())
                return Course(len(self.at), finished, self.units, self.trained, self.clock, self.first)
            self._end(heapq.heappop(self.busy))

    def _wanted(self) -> Unit | None:
        fits = (unit for unit in self.scheduler.candidates() if self._fits(unit, self._cost(unit)))
        return next((unit for unit in fits if unit.trial in self.at or len(self.at) < self.most_trials), None)

    def _fits(self, unit: Unit, cost: float) -> bool:
        budget = self.settings.budget
        return (budget is None or self.spent + cost <= budget) and self.usage.affordable(unit.trial, cost)

    def _cost(self, unit: Unit) -> float:
        begun = unit.parent[1] if unit.parent is not None else self.at.get(unit.trial, 0)
        return max(0, unit.until - begun) * self.price

    def _begin(self, unit: Unit) -> None:
        cost = self._cost(unit)
        self.units, self.spent = self.units + 1, self.spent + cost
        running = _Running(self.clock + cost, self.units, unit, cost)
        reserved = self.usage.reservation(unit.trial, cost)
        if self.pace is not None and reserved is not None:
            needs = self.pace.start + (cost - self.saved.get(unit.trial, 0.0)) / self.pace.rate
            took = min(needs, reserved / self.settings.devices)
            end = self.clock + took * self.pace.rate
            running = _Running(end, self.units, unit, cost, took, took < needs)
        self.usage.start(running.number, reserved)
        heapq.heappush(self.busy, running)
        self.scheduler.apply(Started(unit))
        self.at.setdefault(unit.trial, 0)

    def _end(self, ran: _Running) -> None:
        trial, until = ran.unit.trial, ran.unit.until
        self.clock = ran.end
        start = 0.0 if self.pace is None else self.pace.start
        training = max(0.0, ran.took - start)
        how = "lost" if ran.limited else "reached"
        record = {"how": how, "seconds": ran.took, "training": training, "limited": ran.limited}
        self.usage.end(ran.number, trial, ran.cost, record)
        if ran.limited:
            done = training * (0.0 if self.pace is None else self.pace.rate)
            self.saved[trial], self.trained = self.saved.get(trial, 0.0) + done, self.trained + done
            self.scheduler.apply(Ended(trial, "lost"))
            return
        self.trained += ran.cost - self.saved.pop(trial, 0.0)
        self.at[trial] = until
        if until >= self.settings.R:
            self.first = min(self.first, self.spent)
        self.scheduler.apply(Reported(trial, until, self.value(trial, until)))
        self.scheduler.apply(Ended(trial, "reached"))
