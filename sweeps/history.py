"""What happened in a search, as values: the history that every scheduler's state is folded from.

Resource is what a trial has consumed at a point of its training, in any whole unit that all trials share (epochs,
tokens, steps): a scheduler only ever compares trials at equal resource. Values are losses, lower is better; NaN and
infinities are allowed and count as the worst (see :func:`rank_value`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

How = Literal["reached", "failed", "lost"]
Setting = float | int | str
Config = Mapping[str, Setting]


@dataclass(frozen=True)
class Unit:
    """Work for one worker: advance `trial` to `until` [resource]; a trial not seen before is started.

    bracket: number of the bracket it belongs to. probe: handed out to be observed, not because of its value.
    parent: trial and resource of the checkpoint to start from where that is not the trial's own newest.
    config: what the trial runs with from here on; None leaves it as it is (or, for a new one, to the sampler).
    """

    trial: int
    until: int
    bracket: int = 0
    probe: bool = False
    parent: tuple[int, int] | None = None
    config: Config | None = None


@dataclass(frozen=True)
class Started:
    """A worker took a unit."""

    unit: Unit


@dataclass(frozen=True)
class Reported:
    """A trial's value at a resource."""

    trial: int
    resource: int
    value: float


@dataclass(frozen=True)
class Ended:
    """A unit is over: its resource was reached, the trial failed for good, or the worker was lost."""

    trial: int
    how: How


@dataclass(frozen=True)
class Measured:
    """Measured cost of starting or resuming a trial, as a share of a full training; used by asha_auto only."""

    share: float


Event = Started | Reported | Ended | Measured


def rank_value(value: float) -> float:
    """Return the value to rank by: what is not finite (diverged, crashed) is the worst there is."""
    return value if math.isfinite(value) else math.inf
