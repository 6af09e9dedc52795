"""ASHA that stops: a trial goes straight on at a rung if it is among the best that came so far, else it ends."""

from __future__ import annotations

from collections.abc import Iterator

from sweeps.history import Ended, Event, Reported, Unit
from sweeps.rungs import Rung, crossed, enter, levels
from sweeps.schedulers.base import Scheduler, SchedulerOptions, Trials


class AshaStopping(Scheduler):
    """Continue at a rung iff in the top max(1, floor(n/eta)) of the n that came so far, itself included.

    Decides as Optuna's `SuccessiveHalvingPruner(min_resource=r, reduction_factor=eta, min_early_stopping_rate=skip)`
    does when it is asked at every rung. Arguments as for :class:`sweeps.schedulers.asha_promotion.AshaPromotion`;
    a value up to `tolerance` behind the last of the top counts as equal to it (seed noise, in units of the value).
    """

    def __init__(
        self, r: int, R: int, eta: int = 3, *, skip: int = 0, limit: int | None = None, tolerance: float = 0.0
    ) -> None:
        self.eta = eta
        self.bracket = skip
        self.tolerance = tolerance
        self.levels = levels(r, R, eta, skip)
        self.rungs = [Rung(level) for level in self.levels]
        self.trials = Trials(limit)
        self.going: dict[int, Unit] = {}

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        match event:
            case Reported(trial, resource, value):
                self._report(trial, resource, value)
            case Ended(trial, "failed"):
                self._fail(trial)
            case _:
                pass
        self.trials.apply(event)
        for trial in self.trials.running.keys() & self.going.keys():
            if self.trials.running[trial] == self.going[trial]:
                del self.going[trial]

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then the trials that go on, the one that has waited longest first, then a new one."""
        yield from self.trials.resumed()
        yield from (unit for trial, unit in self.going.items() if trial not in self.trials.running)
        yield from self.trials.fresh(self.levels[0], self.bracket)

    def stopped(self, trial: int) -> bool:
        """Say whether a trial has been stopped below the last rung."""
        at_end = self.trials.at.get(trial, 0) >= self.levels[-1]
        return not at_end and trial not in self.going and trial not in self.trials.running | self.trials.lost

    def _report(self, trial: int, resource: int, value: float) -> None:
        passed = enter(self.rungs, trial, self.trials.at[trial], resource, value)
        goes = True
        for k in passed:
            goes = goes and self.rungs[k].continues(trial, self.eta, self.tolerance)
        if not passed or resource < self.trials.at[trial]:
            return
        after = passed[-1] + 1
        if goes and after < len(self.levels):
            self.going[trial] = Unit(trial, self.levels[after], self.bracket)
        else:
            self.going.pop(trial, None)

    def _fail(self, trial: int) -> None:
        unit = self.trials.running.get(trial)
        if unit is not None:
            for k in crossed(self.levels, self.trials.at[trial], unit.until):
                self.rungs[k].record(trial, float("inf"), unit.until)
        self.going.pop(trial, None)


def make(options: SchedulerOptions) -> AshaStopping:
    """Return the scheduler of a search."""
    return AshaStopping(options.r, options.R, options.eta, limit=options.trials)
