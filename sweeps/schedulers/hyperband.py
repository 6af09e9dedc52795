"""Hyperband without waiting: one promotion ASHA for every bracket, each given the same share of the resource.

Li et al. 2018 ("Hyperband"), run asynchronously as Li et al. 2020 propose. Which bracket is served follows from what
the brackets have been given so far, not from a draw or a hash: with few trials a draw is far from its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.rungs import brackets
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import Scheduler, SchedulerOptions, Trials


class Hyperband(Scheduler):
    """Serve the bracket that has been given the least resource; bracket s starts its trials at r·eta^s."""

    def __init__(self, r: int, R: int, eta: int = 3, *, limit: int | None = None) -> None:
        self.brackets = [AshaPromotion(r, R, eta, skip=skip) for skip in range(brackets(r, R, eta))]
        self.rungs = [rung for bracket in self.brackets for rung in bracket.rungs]
        self.given = [0] * len(self.brackets)
        self.trials = Trials(limit)
        self.place: dict[int, tuple[int, int]] = {}
        self.number: list[list[int]] = [[] for _ in self.brackets]

    def apply(self, event: Event) -> None:
        """Take notice of an event; its bracket is told in its own numbering of trials."""
        match event:
            case Started(unit):
                bracket, local = self._place(unit)
                if unit.trial not in self.trials.lost:  # else a lost worker would shift what is decided next
                    self.given[bracket] += unit.until - self.trials.at.get(unit.trial, 0)
                self.brackets[bracket].apply(Started(replace(unit, trial=local)))
            case Reported(trial) | Ended(trial):
                bracket, local = self.place[trial]
                self.brackets[bracket].apply(replace(event, trial=local))
        self.trials.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then what the brackets want, the one that is furthest behind first."""
        yield from self.trials.resumed()
        for bracket in sorted(range(len(self.brackets)), key=self.given.__getitem__):
            for unit in self.brackets[bracket].candidates():
                if unit.trial < len(self.number[bracket]):
                    yield replace(unit, trial=self.number[bracket][unit.trial])
                else:
                    yield from self.trials.fresh(unit.until, bracket)

    def _place(self, unit: Unit) -> tuple[int, int]:
        if unit.trial not in self.place:
            self.place[unit.trial] = (unit.bracket, len(self.number[unit.bracket]))
            self.number[unit.bracket].append(unit.trial)
        return self.place[unit.trial]


def make(options: SchedulerOptions) -> Hyperband:
    """Return the scheduler of a search."""
    return Hyperband(options.r, options.R, options.eta, limit=options.trials)
