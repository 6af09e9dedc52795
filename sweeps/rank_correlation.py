"""How well early values predict later ones: rank correlations over promoted trials, and their lower bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the rank correlation of two equally long sequences, ties sharing their mean rank.

    Infinite values rank as the worst. None with fewer than three pairs or where one side is all ties.
    """
    if len(a) < 3:
        return None
    return _pearson(mean_ranks(np.asarray(a, dtype=float)), mean_ranks(np.asarray(b, dtype=float)))


def at_least(correlation: float, pairs: int, errors: float) -> float:
    """Return a rank correlation less so many of its standard errors, which Fisher's z has as 1 / sqrt(pairs - 3)."""
    if pairs < 4:
        return -1.0
    z = math.atanh(min(max(correlation, -0.9999), 0.9999))
    return math.tanh(z - errors / math.sqrt(pairs - 3))


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each value's rank from 0, equal ones sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: NDArray[np.float64] = np.add.reduceat(np.arange(len(values), dtype=float), np.cumsum(counts) - counts)
    return (mean / counts)[inverse]
