"""Budgets that are none: runs of a random design whose FLOPs are nearly equal by chance."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.inputs.dataset import SAME_BUDGET, Rows

FEWEST = 3
"""Runs that make a valley."""
RARE, SELDOM = 1e-3, 1e-2
"""As many groups, and so close a group, as chance brings less often than this were meant."""


def budgets(rows: Rows) -> NDArray[np.bool_]:
    """Return which budgets (m,) are groups of three or more runs that chance explains.

    Judged against runs that lie anywhere between the smallest and the largest FLOPs. Runs whose table names budgets
    that are not their FLOPs have these, and so have runs of the very same FLOPs.
    """
    logs, counts = np.log(rows.flops), np.bincount(rows.budget)
    out = np.zeros(len(counts), dtype=bool)
    groups = np.flatnonzero(counts >= FEWEST)
    spread, n = float(np.ptp(logs)) if len(logs) else 0.0, len(logs)
    if not len(groups) or spread <= 0.0:
        return out
    expected = n * _at_least(FEWEST - 1, n / spread * 2.0 * SAME_BUDGET)
    if _at_least(len(groups), expected) < RARE:
        return out
    for group in groups:
        own = logs[rows.budget == group]
        named = abs(np.log(rows.labels[group]) - own.mean()) > 1e-9
        if not named:
            others = (n - len(own)) / spread * float(np.ptp(own))
            out[group] = n * _at_least(len(own) - 1, others) > SELDOM
    return out


def _at_least(count: int, mean: float) -> float:
    """Return the probability that a Poisson variable of this mean is at least `count`."""
    return max(
        0.0, 1.0 - sum(math.exp(-mean + k * math.log(max(mean, 1e-300)) - math.lgamma(k + 1)) for k in range(count))
    )
