"""How long a search still takes: its own scheduler, simulated with the times that units have taken so far. Pure."""

from __future__ import annotations

import copy
import heapq
import math
import random
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from study.search.state import Search
from sweeps.history import Ended, Reported, Started, Unit

MOST = 4_000
"""Most units simulated; a search with more left takes at least as long as these."""


@dataclass(frozen=True)
class Forecast:
    """What is left of a search.

    units: how many, running ones too; worker_seconds: their time on one worker [s]; workers: that hold a unit now;
    seconds: until the search ends with these workers, None where there are none; ends_by: what it ends with;
    at_least: there is more than was looked ahead.
    """

    units: int
    worker_seconds: float
    workers: int
    seconds: float | None
    ends_by: Literal["trials", "budget"]
    at_least: bool = False


def forecast(search: Search, now: float | None = None) -> Forecast | None:
    """Return what is left of a search; None before a unit was timed, and where nothing more is handed out.

    Units take the median time of the latest ones; values are drawn with the mean and spread of those known at the same
    tokens, so which trials are promoted is random. now [s since 1970]: running units have lasted until then; None: no
    time.
    """
    if search.stopped or search.usage.seconds_per_flop is None or search.over:
        return None
    ahead = _Ahead(search)
    workers = len(search.running)
    ahead.run(workers or search.settings.workers, now)
    return Forecast(
        ahead.units,
        ahead.worked,
        workers,
        ahead.clock if workers else None,
        "budget" if ahead.short else "trials",
        ahead.units >= MOST,
    )


class _Ahead:
    """A simulated search: copies of its scheduler and its budget, no sampler, no files."""

    def __init__(self, search: Search) -> None:
        self.claims, self.silent = search.claims, search.silent
        self.scheduler, self.usage = search.scheduler.for_forecast(), copy.deepcopy(search.usage)
        self.budget, self.spent = search.settings.budget, search.spent
        self.devices = search.settings.devices
        self.price = {number: trial.flops_per_token for number, trial in search.trials.items()}
        self.middling = fmean(self.price.values())
        self.at = {number: trial.at for number, trial in search.trials.items()}
        self.most_trials = search.space.size
        known: dict[int, list[float]] = {}
        for trial in search.trials.values():
            for at, value in trial.values.items():
                known.setdefault(at, []).extend([value] if math.isfinite(value) else [])
        self.like = {at: (fmean(vs), pstdev(vs)) for at, vs in known.items() if len(vs) > 1}
        self.start_up, self.rate = search.usage.start_up or 0.0, search.usage.seconds_per_flop or 0.0
        self.chance = random.Random(search.settings.seed)
        self.busy: list[tuple[float, int, Unit, float, float]] = []
        self.units, self.worked, self.clock, self.short = 0, 0.0, 0.0, False

    def run(self, workers: int, now: float | None) -> None:
        """Let the running units end, and the workers take one after the other until nothing is left."""
        for number, claim in self.claims.items():
            lasted = 0.0 if now is None or number in self.silent else now - claim.time
            self._begin(number, claim.unit, lasted)
        number = max(self.claims, default=0)
        while True:
            while len(self.busy) < workers and self.units < MOST and (unit := self._wanted()) is not None:
                number += 1
                flops = self._flops(unit)
                self.spent += flops
                self.usage.start(number, self.usage.reservation(unit.trial, flops))
                self.scheduler.apply(Started(unit))
                self._begin(number, unit)
            if not self.busy:
                return
            self._end(*heapq.heappop(self.busy))

    def _begin(self, number: int, unit: Unit, lasted: float = 0.0) -> None:
        flops = self._flops(unit)
        seconds = self.start_up + self.rate * flops
        left = max(0.0, seconds - lasted)
        self.units, self.worked = self.units + 1, self.worked + left
        self.at.setdefault(unit.trial, 0)
        heapq.heappush(self.busy, (self.clock + left, number, unit, seconds, flops))

    def _end(self, end: float, number: int, unit: Unit, seconds: float, flops: float) -> None:
        self.clock, self.at[unit.trial] = end, unit.until
        record = {"how": "reached", "seconds": seconds, "training": seconds - self.start_up}
        self.usage.end(number, unit.trial, flops, record)
        value = self.chance.gauss(*self.like.get(unit.until, (0.0, 1.0)))
        self.scheduler.apply(Reported(unit.trial, unit.until, value))
        self.scheduler.apply(Ended(unit.trial, "reached"))

    def _wanted(self) -> Unit | None:
        """Return the first unit that fits into the budgets; `short`: an earlier one did not."""
        self.short = False
        for unit in self.scheduler.candidates():
            if unit.trial not in self.at and len(self.at) >= self.most_trials:
                continue
            flops = self._flops(unit)
            if (self.budget is None or self.spent + flops <= self.budget) and self.usage.affordable(unit.trial, flops):
                return unit
            self.short = True
        return None

    def _flops(self, unit: Unit) -> float:
        begun = unit.parent[1] if unit.parent is not None else self.at.get(unit.trial, 0)
        return max(0, unit.until - begun) * self.price.get(unit.trial, self.middling)
