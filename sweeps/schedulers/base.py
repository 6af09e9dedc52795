"""What a scheduler is, and what all of them share: the units that are out, lost or failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.schedulers import SCHEDULERS, STAKE

if TYPE_CHECKING:
    from sweeps.space import Space


class Scheduler(Protocol):
    """Decides from the events so far; two that were given the same events decide the same."""

    def apply(self, event: Event) -> None:
        """Take notice of an event; events come in the order in which they were logged."""

    def candidates(self) -> Iterator[Unit]:
        """Yield the units that may be handed out now, what is wanted most first. Changes nothing: `Started` does."""

    def decide(self) -> Unit | None:
        """Return the next unit of work, None where there is none now."""
        return next(iter(self.candidates()), None)


@dataclass(frozen=True)
class SchedulerOptions:
    """What schedulers are made from; each takes of it what it needs.

    r, R: first rung, or interval between two looks at a member, and full resource; eta: one in eta goes on; trials:
    most that are started, or members; space: of the settings, which copies vary. The others as in section `search`.
    """

    r: int
    R: int
    eta: int = 3
    trials: int | None = None
    seed: int = 0
    space: Space | None = None
    stake: float = STAKE
    quantile: float = 0.2
    resample: float = 0.25
    burn_in: int = 0
    explore: str = "perturb"


def make_scheduler(name: str, options: SchedulerOptions) -> Scheduler:
    """Return a scheduler by its name in `SCHEDULERS`, before any event; ValueError where the options do not suit it."""
    module = import_module(f"sweeps.schedulers.{SCHEDULERS[name].module}")
    return cast(Scheduler, module.make(options))


@dataclass
class Trials:
    """Where every trial stands: its resource, the unit it is in, whether it failed; what was lost comes first."""

    limit: int | None = None
    at: dict[int, int] = field(default_factory=dict)
    running: dict[int, Unit] = field(default_factory=dict)
    lost: dict[int, Unit] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        match event:
            case Started(unit):
                self.at.setdefault(unit.trial, 0)
                self.running[unit.trial] = unit
                self.lost.pop(unit.trial, None)
            case Reported(trial, resource, _):
                self.at[trial] = max(self.at[trial], resource)
            case Ended(trial, how):
                unfinished = self.running.pop(trial, None)
                if how == "lost" and unfinished is not None:
                    self.lost[trial] = unfinished
                if how == "failed":
                    self.failed.add(trial)

    def resumed(self) -> Iterator[Unit]:
        """Yield the units that were lost, to be given to other workers, the one lost for longest first."""
        yield from self.lost.values()

    def fresh(self, until: int, bracket: int = 0) -> Iterator[Unit]:
        """Yield the first unit of the next new trial, unless no more may be started."""
        number = len(self.at)
        if self.limit is None or number < self.limit:
            yield Unit(number, until, bracket)
