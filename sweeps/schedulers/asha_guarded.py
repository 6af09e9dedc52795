"""ASHA that hedges: most of the resource goes to trials that nobody selects, until these show that early losses tell.

On real curves of large models successive halving can be worse than random search: where the order at a rung is not
that at the end, it keeps the wrong trials and never sees the right ones. Nothing in a rung shows that; only trials do
that were trained to the end whatever their early losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sweeps.events import Event, Reported, Started, Unit
from sweeps.evidence import Odds
from sweeps.rungs import Rung, crossed
from sweeps.schedulers.asha_promotion import AshaPromotion


@dataclass(frozen=True)
class Evidence:
    """What a guard's next decision rests on.

    odds: of early places telling the final order against not, by `finished` trials, `probes` of which nobody selected;
    needed: odds from which selection gets more than its first stake; rate: what selection earns for each unit of a
    probe's resource; given, allowed: what selection was given, and what it may be given [resource].
    """

    odds: float
    needed: float
    finished: int
    probes: int
    rate: float
    given: int
    allowed: float


class AshaGuarded(AshaPromotion):
    """Promotion ASHA among some of the trials; all others are probes, which nobody selects.

    A probe is trained to the end, rung by rung, unless it diverges. It earns selection resource: `stake` times its own
    at first, stake · odds once the odds (:class:`sweeps.evidence.Odds`) are `proof` or more, at most `most` times its
    own; stake · odds² while they are below 1, so that what is contradicted ends. Selection is given what was earned in
    whole trainings R, one worker for each, so that the probes on the others end when those of random search would.
    A trial's early place is the worst, over the rungs below R, of the shares of unselected trials that are better.
    """

    def __init__(
        self,
        r: int,
        R: int,
        eta: int = 3,
        *,
        limit: int | None = None,
        stake: float = 0.2,
        proof: float = 5.0,
        most: float = 9.0,
    ) -> None:
        super().__init__(r, R, eta, limit=limit)
        if not 0 < stake <= most or proof < 1:
            raise ValueError(
                f"stake={stake}, proof={proof}, most={most}: a stake above 0, a proof of at least 1 and a `most` of at "
                "least the stake are needed"
            )
        self.stake, self.proof, self.most = stake, proof, most
        self.contest = [Rung(level) for level in self.levels]
        self.unselected = [Rung(level) for level in self.levels]
        self.probes: dict[int, float] = {}
        self.selected: set[int] = set()
        self.finished: dict[int, float] = {}
        self.odds = Odds()
        self.given = 0
        self.extra = 0.0

    @property
    def rate(self) -> float:
        """What selection earns for each unit of a probe's resource now."""
        odds = self.odds.value
        if odds < self.proof:
            return self.stake * min(1.0, odds**2)
        return min(self.stake * odds, self.most)

    @property
    def allowed(self) -> float:
        """What selection has earned so far [resource]."""
        return self.extra + sum(rate * self._length(trial) for trial, rate in self.probes.items())

    def evidence(self) -> Evidence:
        """Return what the next decision rests on."""
        probes = sum(trial in self.probes for trial in self.finished)
        return Evidence(self.odds.value, self.proof, len(self.finished), probes, self.rate, self.given, self.allowed)

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        match event:
            case Started(unit):
                if unit.trial not in self.trials.lost:
                    self._start(unit)
                super().apply(event)
            case Reported(trial, resource, value):
                passed = crossed(self.levels, self.trials.at[trial], resource)
                super().apply(event)
                self._see(trial, value, passed)
            case _:
                super().apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then the units of selection and of probes: selection's first while it is due."""
        yield from self.trials.resumed()
        first, second = self._probing(), self._selecting()
        if self._is_due():
            first, second = second, first
        yield from first
        yield from second

    def _is_due(self) -> bool:
        """Say whether one more worker may select: for each there is a training's resource that was earned."""
        R = self.levels[-1]
        held = [unit for unit in self.trials.running.values() if not unit.probe]
        ended = self.given - sum(unit.until - self.trials.at[unit.trial] for unit in held)
        return len(held) * R < math.floor(self.allowed / R) * R - ended

    def _start(self, unit: Unit) -> None:
        at, new = self.trials.at.get(unit.trial, 0), unit.trial not in self.trials.at
        if unit.probe:
            if new:
                self.probes[unit.trial] = min(self.rate, self.stake)
            self.extra += max(0.0, self.rate - self.stake) * (unit.until - at)
        else:
            self.probes.pop(unit.trial, None)
            self.selected.add(unit.trial)
            self.given += unit.until - at
        if unit.trial in self.selected:
            for k in crossed(self.levels, 0, at):
                self.contest[k].promote(unit.trial)

    def _see(self, trial: int, value: float, passed: range) -> None:
        """Enter a trial's value where it competes and where others are placed by it; at the end take in its order."""
        for k in passed:
            if trial in self.selected:
                self.contest[k].record(trial, value)
            if k == 0 or trial in self.probes:
                self.unselected[k].record(trial, value)
        last = len(self.levels) - 1
        if last in passed and last > 0 and trial not in self.finished:
            place = max(self._place(k, trial) for k in range(last))
            self.finished[trial] = place
            self.odds.add(place, self.rungs[last].of[trial][0])

    def _place(self, k: int, trial: int) -> float:
        """Return the expected share of unselected trials that are better at a rung, by those seen; equals are half."""
        own = self.rungs[k].of[trial][0]
        others = [entry[0] for entry in self.unselected[k].entries if entry[2] != trial]
        ahead = sum(value < own for value in others) + 0.5 * sum(value == own for value in others)
        return (ahead + 1) / (len(others) + 2)

    def _length(self, trial: int) -> int:
        """Return what a probe has taken or will have taken at its end [resource]."""
        return self.trials.at.get(trial, 0) if self._is_over(trial) else self.levels[-1]

    def _is_over(self, trial: int) -> bool:
        """Say whether a trial failed or diverged; where it did so is the last rung that it was recorded at."""
        return trial in self.trials.failed or any(rung.of.get(trial, (0.0,))[0] == math.inf for rung in self.rungs)

    def _selecting(self) -> Iterator[Unit]:
        """Yield promotions among selection's own trials, then a new one; from the third rung on the first goes on."""
        for k in reversed(range(len(self.levels) - 1)):
            rung = self.contest[k]
            alone = rung.open[:1] if k > 1 and not rung.promoted and len(rung.entries) < self.eta else []
            for _, _, trial in (entry for entry in alone if entry[0] < math.inf):
                yield Unit(trial, self.levels[k + 1])
            for trial in rung.promotables(self.eta):
                yield Unit(trial, self.levels[k + 1])
        yield from self.trials.fresh(self.levels[0])

    def _probing(self) -> Iterator[Unit]:
        """Yield the next units of the probes that wait, the first begun first, then a new probe.

        Where no trial may be started any more and the odds are against selection, what that has paused goes on.
        """
        for trial in self.probes:
            if self._waits(trial):
                yield Unit(trial, self._next(trial), probe=True)
        fresh = next(self.trials.fresh(self.levels[0]), None)
        if fresh is not None:
            yield Unit(fresh.trial, fresh.until, probe=True)
        elif self.odds.value < 1:  # what was left lying by their early values may be the best there is
            for trial in sorted(self.selected):
                if self._waits(trial):
                    yield Unit(trial, self._next(trial), probe=True)

    def _waits(self, trial: int) -> bool:
        at_end = self.trials.at[trial] >= self.levels[-1]
        return not at_end and trial not in self.trials.running and not self._is_over(trial)

    def _next(self, trial: int) -> int:
        return next(level for level in self.levels if level > self.trials.at[trial])
