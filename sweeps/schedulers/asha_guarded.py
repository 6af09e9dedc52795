"""ASHA on a fixed share (`stake`) of the resource; the rest trains unselected trials to the end.

Where early losses do not predict the final ones, as on some curves of large models, successive halving can be worse
than random search: it keeps the wrong trials and never sees the right ones. Trials trained to the end whatever their
early losses guard against that. The share stays, however well early losses have predicted so far: that says nothing of
trials not yet seen.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from sweeps.history import Ended, Event, Reported, Started, Unit
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
        self.probes: dict[int, int] = {}
        """The place of each probe in the order in which they became probes."""
        self.earning: set[int] = set()
        """Probes that earn ASHA resource."""
        self.selected: set[int] = set()
        self.finished: dict[int, float] = {}
        self.odds = Odds()
        self.given = 0
        self._began = 0
        self._lengths: dict[int, int] = {}
        self._length = 0
        self._waiting: set[int] = set()
        self._paused: set[int] = set()

    @property
    def share(self) -> float:
        """The share of the resource that ASHA gets now."""
        return self.stake if self.odds.value >= DOUBT - ROUNDING else 0.0

    @property
    def allowed(self) -> float:
        """What the probes have earned for ASHA so far, those under way included as if they had ended [resource]."""
        return self._length * self.stake / (1 - self.stake)

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
                self._update(unit.trial)
            case Reported(trial, resource, value):
                passed = crossed(self.levels, self.trials.at[trial], resource)
                super().apply(event)
                self._see(trial, value, passed)
                self._update(trial)
            case Ended(trial):
                super().apply(event)
                self._update(trial)
            case _:
                super().apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield lost units, then waiting probes, ASHA's units while they are due, a new probe, ASHA's other units."""
        yield from self.trials.resumed()
        yield from map(self._probe, sorted(self._waiting, key=self.probes.__getitem__))
        yield from self._due()
        fresh = next(self.trials.fresh(self.levels[0]), None)
        if fresh is not None:
            yield Unit(fresh.trial, fresh.until, probe=True)
        else:
            yield from map(self._probe, sorted(self._paused))
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
            if unit.trial not in self.probes:
                self._began += 1
                self.probes[unit.trial] = self._began
                if unit.trial not in self.selected and self.share > 0:
                    self.earning.add(unit.trial)
        else:
            self.probes.pop(unit.trial, None)
            self.earning.discard(unit.trial)
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
        rung = self.unselected[k]
        ahead = bisect_left(rung.entries, (own,))
        equal = bisect_right(rung.entries, (own, math.inf)) - ahead
        if trial in rung.of:  # it is not compared with itself
            ahead -= rung.of[trial][0] < own
            equal -= rung.of[trial][0] == own
        return (ahead + 0.5 * equal + 1) / (len(rung.entries) - (trial in rung.of) + 2)

    def _update(self, trial: int) -> None:
        """Note what an event has changed for its trial: a decision that looked at all trials would take too long."""
        at, end = self.trials.at[trial], self.levels[-1]
        over = trial in self.trials.failed or any(rung.of.get(trial, (0.0,))[0] == math.inf for rung in self.rungs)
        length = (at if over else end) if trial in self.earning else 0
        self._length += length - self._lengths.get(trial, 0)
        self._lengths[trial] = length
        self._waiting.discard(trial)
        self._paused.discard(trial)
        if at < end and trial not in self.trials.running and not over:
            (self._waiting if trial in self.probes else self._paused).add(trial)

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

    def _probe(self, trial: int) -> Unit:
        """Return a probe's next unit: to its next rung."""
        return Unit(trial, next(level for level in self.levels if level > self.trials.at[trial]), probe=True)


def make(options: SchedulerOptions) -> AshaGuarded:
    """Return the scheduler of a search."""
    return AshaGuarded(options.r, options.R, options.eta, limit=options.trials, stake=options.stake)
