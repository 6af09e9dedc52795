"""Loss spikes: when a step counts as high, when high steps are a spike, and what follows. Pure decisions.

A step is high when its loss or gradient norm lies more than `threshold` standard deviations above the mean of the
latest `window` steps that were not high. `persistence` high steps in a row are a spike: single high steps heal by
themselves and are common. What stays high after that is taken for the new normal and enters the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from train.spec.config import SpikesConfig

_SMALLEST_SPREAD = 1e-3
"""Least standard deviation, as a share of the mean: on a flat loss, noise is no spike."""


@dataclass(frozen=True)
class Seen:
    """The detector's state, as plain numbers, which a checkpoint stores.

    losses, norms: of the latest steps that were not high, oldest first. first: the step at which the present row of
    high steps began, None outside of one. row: its length [steps].
    """

    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    first: int | None = None
    row: int = 0

    def plain(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)

    @staticmethod
    def of(plain: dict[str, Any]) -> Seen:
        """Return what `plain` gave."""
        return Seen(tuple(plain["losses"]), tuple(plain["norms"]), plain["first"], plain["row"])


@dataclass(frozen=True)
class Verdict:
    """What one step was. loss_z, norm_z: standard deviations above the window's mean, 0 while it is too short.

    spike: the first step of a spike that is complete with this step, else None.
    """

    loss_z: float
    norm_z: float
    high: bool
    spike: int | None


class Action(Enum):
    """What follows from a spike."""

    GO_ON = "go on"
    ROLL_BACK = "roll back"
    STOP = "stop"


def observe(seen: Seen, step: int, loss: float, norm: float | None, config: SpikesConfig) -> tuple[Seen, Verdict]:
    """Return the memory after a step, and what the step was. loss in nats per token; not finite counts as high.

    norm: None where it is not known, as the gradient overflowed in fp16: then the loss alone tells.
    """
    long_enough = len(seen.losses) >= config.warmup_steps and config.threshold > 0
    loss_z = z_score(loss, seen.losses) if long_enough else 0.0
    norm_z = z_score(norm, seen.norms) if long_enough and norm is not None else 0.0
    high = max(loss_z, norm_z) > config.threshold if long_enough else False
    if not high:
        return _remember(replace(seen, first=None, row=0), loss, norm, config.window), Verdict(
            loss_z, norm_z, False, None
        )
    first, row = (step, 1) if seen.first is None else (seen.first, seen.row + 1)
    after = replace(seen, first=first, row=row)
    if row > config.persistence:
        after = _remember(after, loss, norm, config.window)
    return after, Verdict(loss_z, norm_z, True, first if row == config.persistence else None)


def z_score(value: float, window: Sequence[float]) -> float:
    """Return how many standard deviations `value` lies above the mean of the window; inf where it is not finite."""
    if not math.isfinite(value):
        return math.inf
    mean = math.fsum(window) / len(window)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in window) / len(window))
    return (value - mean) / max(spread, _SMALLEST_SPREAD * abs(mean), 1e-30)


def decide(config: SpikesConfig, spike: int | None, rollbacks: int) -> Action:
    """Return the action on a complete spike that began at step `spike`, after `rollbacks` earlier ones."""
    if spike is None or config.policy == "log":
        return Action.GO_ON
    if config.policy == "rollback" and rollbacks < config.limit:
        return Action.ROLL_BACK
    return Action.STOP


def _remember(seen: Seen, loss: float, norm: float | None, window: int) -> Seen:
    if norm is None or not (math.isfinite(loss) and math.isfinite(norm)):
        return seen
    return replace(seen, losses=(*seen.losses, loss)[-window:], norms=(*seen.norms, norm)[-window:])
