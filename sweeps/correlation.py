"""How far an early value tells the final one: Spearman's rank correlation over the trials that went on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the rank correlation of two equally long sequences, ties sharing their mean rank.

    Infinite values rank as the worst. None with fewer than three pairs or where one side is all ties.
    """
    if len(a) < 3:
        return None
    x, y = mean_ranks(np.asarray(a, dtype=float)), mean_ranks(np.asarray(b, dtype=float))
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each value's rank from 0, equal ones sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2.0)[inverse]
