"""ASHA as published: a trial pauses at every rung and goes on when among the best (Li et al. 2020, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterator

from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.rungs import Rung, crossed, enter, levels
from sweeps.schedulers.base import Scheduler, SchedulerOptions, Trials


class AshaPromotion(Scheduler):
    """Promote one of the top floor(n/eta) of a rung, highest rung first; where there is none, start a new trial.

    r, R: first rung and full resource; eta: one in eta goes on; skip: rungs left out below (Hyperband's bracket);
    limit: most trials started. A promoted trial goes on from its checkpoint, so its resource is its highest rung.
    """

    def __init__(self, r: int, R: int, eta: int = 3, *, skip: int = 0, limit: int | None = None) -> None:
        self.eta = eta
        self.bracket = skip
        self.levels = levels(r, R, eta, skip)
        self.rungs = [Rung(level) for level in self.levels]
        self.trials = Trials(limit)

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        match event:
            case Started(unit):
                for k in crossed(self.levels, 0, self.trials.at.get(unit.trial, 0)):
                    self.rungs[k].promote(unit.trial)
            case Reported(trial, resource, value):
                enter(self.rungs, trial, self.trials.at[trial], resource, value)
            case Ended(trial, "failed"):
                self._fail(trial)
            case _:
                pass
        self.trials.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then promotions, those from the highest rung first, then a new trial."""
        yield from self.trials.resumed()
        for k in reversed(range(len(self.rungs) - 1)):
            for trial in self.rungs[k].promotables(self.eta):
                yield Unit(trial, self.levels[k + 1], self.bracket)
        yield from self.trials.fresh(self.levels[0], self.bracket)

    def _fail(self, trial: int) -> None:
        """Let a trial that failed count as the worst in the rung that it was on its way to, and never go on."""
        unit = self.trials.running.get(trial)
        if unit is None:
            return
        for k in crossed(self.levels, self.trials.at[trial], unit.until):
            self.rungs[k].record(trial, float("inf"), unit.until)


def make(options: SchedulerOptions) -> AshaPromotion:
    """Return the scheduler of a search."""
    return AshaPromotion(options.r, options.R, options.eta, limit=options.trials)
