"""ASHA on a fixed share (`stake`) of the resource; the rest trains unselected trials to the end.

Where early losses do not predict the final ones, as on some curves of large models, successive halving can be worse
than random search: it keeps the wrong trials and never sees the right ones. Trials trained to the end whatever their
early losses guard against that. The share stays, however well early losses have predicted so far: that says nothing of
trials not yet seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from sweeps.history import Event, Reported, Started, Unit
from sweeps.rungs import Rung, crossed
from sweeps.schedulers import STAKE
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import Evidence, SchedulerOptions
from sweeps.schedulers.evidence import Odds

DOUBT = 1.0
"""Odds below which ASHA gets no resource until they rise again: early ranks do not predict final ones."""
ROUNDING = 1e-9
"""Tolerance for rounding in sums and products of shares."""


class AshaGuarded(AshaPromotion):
    """Promotion ASHA with `stake` of the resource, among trials of its own; all other trials are probes.

    A probe is trained to the end, rung by rung, unless it diverges. Once no new trial may start, the trials that ASHA
    has paused become probes, in the order of their numbers. ASHA holds one worker in 1 / stake. With fewer workers it
    gets one for whole trainings R as probes earn them, stake / (1 - stake) for each unit of a probe's resource, so that
    probes end when the trials of a random search would.
    """

    def __init__(self, r: int, R: int, eta: int = 3, *, limit: int | None = None, stake: float = STAKE) -> None:
        super().__init__(r, R, eta, limit=limit)
        if not 0 < stake < 1:
            raise ValueError(f"stake={stake} is not allowed: it is ASHA's share of the resource, above 0 and below 1")
        self.stake = stake
        self.contest = [Rung(level) for level in self.levels]
        self.unselected = [Rung(level) for level in self.levels]
        self.probes: dict[int, float] = {}
        self.selected: set[int] = set()
        self.finished: dict[int, float] = {}
        self.odds = Odds()
        self.given = 0

    @property
    def share(self) -> float:
        """The share of the resource that ASHA gets now."""
        return self.stake if self.odds.value >= DOUBT - ROUNDING else 0.0

    @property
    def allowed(self) -> float:
        """What the probes have earned for ASHA so far, those under way included [resource]."""
        return sum(rate * self._length(trial) for trial, rate in self.probes.items())

    def evidence(self) -> Evidence:
        """Return what the next decision rests on."""
        probes = sum(trial in self.probes for trial in self.finished)
        return Evidence(self.odds.value, DOUBT, len(self.finished), probes, self.share, self.given, self.allowed)

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
        """Yield lost units, then waiting probes, ASHA's units while they are due, a new probe, ASHA's other units."""
        yield from self.trials.resumed()
        yield from self._waiting(self.probes)
        yield from self._due()
        fresh = next(self.trials.fresh(self.levels[0]), None)
        if fresh is not None:
            yield Unit(fresh.trial, fresh.until, probe=True)
        else:
            yield from self._waiting(sorted(self.selected - self.probes.keys()))
        yield from self._selecting()

    def _due(self) -> Iterator[Unit]:
        """Yield ASHA's units if it may hold one more worker, else those that fit into what probes have earned."""
        running = self.trials.running.values()
        held = sum(not unit.probe for unit in running)
        if held + 1 <= self.share * (len(running) + 1) + ROUNDING:
            yield from self._selecting()
        elif held == 0 and self.share > 0:
            R = self.levels[-1]
            left = math.floor(self.allowed / R + ROUNDING) * R - self.given
            yield from (unit for unit in self._selecting() if unit.until - self.trials.at.get(unit.trial, 0) <= left)

    def _start(self, unit: Unit) -> None:
        at = self.trials.at.get(unit.trial, 0)
        if unit.probe:
            rate = 0.0 if unit.trial in self.selected else self.share / (1 - self.stake)
            self.probes.setdefault(unit.trial, rate)
        else:
            self.probes.pop(unit.trial, None)
            self.selected.add(unit.trial)
            self.given += unit.until - at
        if unit.trial in self.selected:
            for k in crossed(self.levels, 0, at):
                self.contest[k].promote(unit.trial)

    def _see(self, trial: int, value: float, passed: range) -> None:
        """Record a trial's value on its rungs; at its end, update the odds with its early and final ranks."""
        for k in passed:
            if trial in self.selected:
                self.contest[k].record(trial, value)
            if k == 0 or (trial in self.probes and trial not in self.selected):
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
        """Yield promotions among ASHA's own trials, then a new one; from the third rung on the first is promoted."""
        for k in reversed(range(len(self.levels) - 1)):
            rung = self.contest[k]
            alone = rung.open[:1] if k > 1 and not rung.promoted and len(rung.entries) < self.eta else []
            for _, _, trial in (entry for entry in alone if entry[0] < math.inf):
                yield Unit(trial, self.levels[k + 1])
            for trial in rung.promotables(self.eta):
                yield Unit(trial, self.levels[k + 1])
        yield from self.trials.fresh(self.levels[0])

    def _waiting(self, trials: Iterable[int]) -> Iterator[Unit]:
        """Yield the next units of those trials that are neither over nor out."""
        for trial in trials:
            at = self.trials.at[trial]
            if at < self.levels[-1] and trial not in self.trials.running and not self._is_over(trial):
                yield Unit(trial, next(level for level in self.levels if level > at), probe=True)


def make(options: SchedulerOptions) -> AshaGuarded:
    """Return the scheduler of a search."""
    return AshaGuarded(options.r, options.R, options.eta, limit=options.trials, stake=options.stake)
