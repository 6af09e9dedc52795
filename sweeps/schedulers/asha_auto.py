"""ASHA that pauses trials at every rung, or stops or continues them at once, by the measured cost of a start.

A trial that goes on at once keeps its process; one that is promoted later is started anew. On recorded curves with a
cost for each start, promotion is the better of the two while that is below about 3.7 % of a full training.
"""

from __future__ import annotations

from collections.abc import Iterator

from sweeps.history import Event, Measured, Reported, Started, Unit
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import SchedulerOptions

BREAK_EVEN = 0.037


class AshaAuto(AshaPromotion):
    """Promotion ASHA until a start is measured to cost more than `break_even` of a full training; then stopping ASHA.

    Both fill the same rungs, so nothing is lost in between, and a later measurement may turn it back. Stopping prefers
    trials that are among the best so far to new ones; what it has stopped is promoted only once there are no new ones.
    """

    def __init__(
        self, r: int, R: int, eta: int = 3, *, limit: int | None = None, break_even: float = BREAK_EVEN
    ) -> None:
        super().__init__(r, R, eta, limit=limit)
        self.break_even: float = break_even
        self.share: float | None = None
        self.going: dict[int, Unit] = {}

    @property
    def stopping(self) -> bool:
        """Whether trials continue or stop at a rung at once, instead of pausing."""
        return self.share is not None and self.share > self.break_even

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        match event:
            case Measured(share):
                self.share = share
            case Reported(trial, resource, _):
                newest = resource >= self.trials.at[trial]
                super().apply(event)
                if newest:
                    self._see(trial, resource)
            case Started(unit):
                self.going.pop(unit.trial, None)
                super().apply(event)
            case _:
                super().apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost; where trials stop, those that go on and a new one; then what promotion wants."""
        yield from self.trials.resumed()
        if self.stopping:
            yield from self._straight_on()
            yield from self.trials.fresh(self.levels[0], self.bracket)
        yield from super().candidates()

    def _see(self, trial: int, resource: int) -> None:
        """Note whether a trial is among the best in each rung that its report fills, itself included."""
        passed = [k for k, rung in enumerate(self.rungs) if rung.since.get(trial) == resource]
        if not passed:
            return
        goes = all(self.rungs[k].continues(trial, self.eta) for k in passed)
        if goes and passed[-1] + 1 < len(self.levels):
            self.going[trial] = Unit(trial, self.levels[passed[-1] + 1], self.bracket)
        else:
            self.going.pop(trial, None)

    def _straight_on(self) -> Iterator[Unit]:
        """Yield the trials that go straight on, the one that has waited longest first."""
        free = (t for t in self.going if t not in self.trials.running and t not in self.trials.failed)
        yield from (self.going[trial] for trial in free)


def make(options: SchedulerOptions) -> AshaAuto:
    """Return the scheduler of a search."""
    return AshaAuto(options.r, options.R, options.eta, limit=options.trials)
