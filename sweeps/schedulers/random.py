"""No selection: every trial is trained to the end (random search, grids, quasi-random designs)."""

from __future__ import annotations

from collections.abc import Iterator

from sweeps.history import Event, Unit
from sweeps.schedulers.base import Scheduler, SchedulerOptions, Trials


class FullRuns(Scheduler):
    """Start one trial after the other, each to the full resource R; `limit`: most trials started."""

    def __init__(self, R: int, limit: int | None = None) -> None:
        if R < 1:
            raise ValueError(f"R={R} is not allowed: the full resource is at least 1")
        self.R = R
        self.trials = Trials(limit)

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        self.trials.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then a new trial."""
        yield from self.trials.resumed()
        yield from self.trials.fresh(self.R)


def make(options: SchedulerOptions) -> FullRuns:
    """Return the scheduler of a search."""
    return FullRuns(options.R, limit=options.trials)
