"""Ray Tune's and Syne Tune's own ASHA brackets behind our interface, where they are installed (extra `bench`)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from sweeps.history import Event, Reported, Started, Unit, rank_value
from sweeps.rungs import levels
from sweeps.schedulers.base import Scheduler, Trials

Goes = Callable[[int, int, float], bool]
"""Tells a library a trial's value at a resource and returns whether it lets the trial go on."""


class Stopped(Scheduler):
    """Trials that go straight on while a library says so, asked at every level r, r·eta, …, R."""

    def __init__(self, goes: Goes, r: int, R: int, eta: int, limit: int | None = None) -> None:
        self.goes, self.levels = goes, levels(r, R, eta)
        self.going: dict[int, Unit] = {}
        self.trials = Trials(limit)

    def apply(self, event: Event) -> None:
        """Take notice of an event."""
        match event:
            case Started(unit):
                self.going.pop(unit.trial, None)
            case Reported(trial, resource, value):
                after = next((level for level in self.levels if level > resource), None)
                if self.goes(trial, resource, rank_value(value)) and after is not None:
                    self.going[trial] = Unit(trial, after)
            case _:
                pass
        self.trials.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what was lost, then trials that go on, then a new one."""
        yield from self.trials.resumed()
        yield from self.going.values()
        yield from self.trials.fresh(self.levels[0])


def ray(r: int, R: int, eta: int, limit: int | None = None) -> Stopped:
    """Return Ray Tune's AsyncHyperBandScheduler of one bracket."""
    bracket = importlib.import_module("ray.tune.schedulers.async_hyperband")._Bracket(r, R, eta, 0)

    def goes(trial: int, resource: int, value: float) -> bool:
        action: Any = bracket.on_result(SimpleNamespace(trial_id=trial), resource, -value)
        return str(action) != "STOP"

    return Stopped(goes, r, R, eta, limit)


def syne(r: int, R: int, eta: int, limit: int | None = None) -> Stopped:
    """Return Syne Tune's AsynchronousSuccessiveHalving of one bracket."""
    bracket = importlib.import_module("syne_tune.optimizer.schedulers.asha").Bracket(r, R, eta, 0)

    def goes(trial: int, resource: int, value: float) -> bool:
        return str(bracket.on_result(str(trial), resource, {"loss": value})) != "STOP"

    return Stopped(goes, r, R, eta, limit)


def installed() -> dict[str, Callable[..., Stopped]]:
    """Return the peers that are installed, by their name in the table."""
    known = {"ray_asha": ("ray", ray), "syne_asha": ("syne_tune", syne)}
    return {name: make for name, (package, make) in known.items() if importlib.util.find_spec(package) is not None}
