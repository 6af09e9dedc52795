"""Whether strategies train alike: how far their losses are apart, and how far rounding may bring them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

BOUNDS = {"fp32": 1e-4, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
"""How far the last losses of two strategies may be apart, relative to them, by `precision.name`.

Strategies round gradients at other places: one sums a weight's gradient in fp32 where another has it rounded to the
format of products. An update is then off by that format's unit roundoff u at most, and the fall of the loss up to a
step by u of itself, to first order: which is less than u of the loss while that has not fallen by half. Differences may
not grow by themselves, for which the learning rate is warmed up. In fp32 sums in another order add up to more than its
u of 6e-8; 1e-4 is a thousand times what was seen.
"""
LAST = 4
"""Losses are compared over the last of so many parts of the steps: one of many steps says little."""
ROSE = 0.05
"""A loss that rises by more than this share of itself from one step to the next is one of an unsteady run.

Batches of a thousand tokens differ by 1 %.
"""


def bound(precision: str) -> float:
    """Return how far the means of the last losses may be apart, relative to them."""
    return BOUNDS[precision]


def last(losses: Sequence[float]) -> Sequence[float]:
    """Return the losses that are compared."""
    return losses[-max(1, len(losses) // LAST) :]


def apart(here: Sequence[float], there: Sequence[float]) -> float:
    """Return how far the means of the last losses are apart, relative to `there`; infinity where one is no number."""
    return _relative(fmean(last(here)), fmean(last(there)))


def most_apart(here: Sequence[float], there: Sequence[float]) -> float:
    """Return the most that losses of one step are apart, relative to `there`; infinity where one is no number."""
    return max(map(_relative, here, there))


def _relative(here: float, there: float) -> float:
    found = abs(here - there) / abs(there)
    return found if math.isfinite(found) else math.inf


def rise(losses: Sequence[float]) -> tuple[int, float] | None:
    """Return the step whose loss is furthest above the one before, and how far, relative; None in a steady run."""
    found = [(step, (after - before) / before) for step, (before, after) in enumerate(pairwise(losses), 2)]
    most = max(found, key=lambda one: one[1], default=None)
    return most if most is not None and most[1] > ROSE else None
