"""What a scheduler is, and what all of them share: the units that are out, lost or failed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, Self, cast

from sweeps.history import Config, Ended, Event, Reported, Started, Unit
from sweeps.schedulers import SCHEDULERS, STAKE

if TYPE_CHECKING:
    from sweeps.rungs import Rung
    from sweeps.space import Space


@dataclass(frozen=True)
class Copy:
    """An exploit: `member` went on from `donor`'s checkpoint at `resource` with `config`."""

    member: int
    donor: int
    own: int
    resource: int
    config: Config


class Population(Protocol):
    """Trials that copy each other; used: what they have been trained, all together [resource]."""

    used: int

    @property
    def lineage(self) -> Sequence[Copy]:
        """Their copies so far."""

    def schedule(self, member: int) -> list[tuple[int, Config]]:
        """Return the hyper-parameters that led to a member's weights: from which resource on which config."""


@dataclass(frozen=True)
class Evidence:
    """State of `asha_guarded`.

    odds: that early ranks predict final ones against that they do not, by `finished` trials, of which `probes` were
    unselected; needed: odds below which ASHA gets nothing; share: of all resource, what ASHA gets now; given, allowed:
    what ASHA has used, and what the probes have earned for it [resource].
    """

    odds: float
    needed: float
    finished: int
    probes: int
    share: float
    given: int
    allowed: float


class Scheduler(Protocol):
    """Decides from the events so far; two that were given the same events decide the same.

    rungs: where it has compared trials. break_even: share of a full training above which starting a unit makes trials
    go straight on or stop instead of pausing; None: it decides the same whatever a start takes.
    """

    rungs: Sequence[Rung] = ()
    break_even: float | None = None

    @property
    def population(self) -> Population | None:
        """The members that its trials are; None where trials copy nobody."""
        return None

    @property
    def stopping(self) -> bool:
        """Whether trials continue directly or stop now, as starting them takes more than `break_even`."""
        return False

    def evidence(self) -> Evidence | None:
        """Return the state of a guard (`asha_guarded`); None for a scheduler without one."""
        return None

    def for_forecast(self) -> Self:
        """Return a copy for simulations, which may choose settings in a cheaper way."""
        return copy.deepcopy(self)

    def apply(self, event: Event) -> None:
        """Apply an event; events come in the order in which they were logged."""

    def candidates(self) -> Iterator[Unit]:
        """Yield the units that may be handed out now, best first. Pure: only `Started` changes the state."""

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
    """The state of every trial: its resource, its current unit, whether it failed; lost units come first."""

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
