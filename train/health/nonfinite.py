"""Steps whose loss or gradient is not finite: skipped on the device, counted on the host when their values arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def skip_flag(loss: Tensor, norm: Tensor) -> Tensor:
    """Return 1 as a float32 scalar on the device where loss or gradient norm is not finite, else 0.

    Both are what all ranks agree on, so that all skip alike; nothing waits for the value.
    """
    return 1.0 - (torch.isfinite(loss) & torch.isfinite(norm)).float()


OVERFLOWS = 64
"""So many overflows in a row a falling loss scale explains: it goes from 2^40 to its least, 2^-24."""


@dataclass(frozen=True)
class Skipped:
    """How many steps were skipped: in all, in a row until now, and by overflows in a row that a loss scale explains."""

    total: int = 0
    in_row: int = 0
    overflows: int = 0


def count(before: Skipped, loss: float, norm: float, overflows_expected: bool = False) -> Skipped:
    """Return the counts after a step with this loss and gradient norm.

    overflows_expected: with loss scaling a gradient that overflows lowers the scale and is no sign of divergence, so
    that it counts in all but not in a row; unless lower scales, `OVERFLOWS` in a row, have not helped.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        return Skipped(before.total)
    if overflows_expected and math.isfinite(loss) and before.overflows < OVERFLOWS:
        return Skipped(before.total + 1, 0, before.overflows + 1)
    return Skipped(before.total + 1, before.in_row + 1, before.overflows)


def forgiven(before: Skipped, after: Skipped) -> bool:
    """Say whether a step was lost to an overflow that lowers the loss scale, and tells nothing of the run."""
    return after.overflows > before.overflows


def diverged(skipped: Skipped, policy: str, limit: int) -> bool:
    """Say whether the run is over: at the first such step under "stop", after `limit` in a row under "skip"."""
    return skipped.in_row >= (1 if policy == "stop" else limit)
