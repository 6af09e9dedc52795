"""Which of several equal values is taken, by a rule that neither rounding nor the order of the rows can change.

What is computed differs in its last digits from processor to processor, and losses are printed with few digits: the
lowest of equal values would be any of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.inputs.dataset import Array

EQUAL = 1e-9
"""Values that are above the lowest by less than this share of it are equal to it."""


def lowest(values: Array, *by: Array) -> int:
    """Return the number of the lowest of `values` (n,); of equal ones that of the lowest `by`, then the first.

    >>> lowest(np.array([3.0, 2.0 + 1e-12, 2.0]), np.array([1e6, 2e6, 4e6]))
    1
    """
    finite = np.where(np.isnan(values), np.inf, values)
    least = float(finite.min())
    equal = np.flatnonzero(finite <= least + EQUAL * abs(least))
    order = np.lexsort([key[equal] for key in (np.arange(len(values)), *reversed(by))])
    return int(equal[order[0]])


def lowest_rows(values: Array) -> NDArray[np.int64]:
    """Return the number (m,) of the lowest of each column of `values` (n, m); of equal ones the first."""
    least = values.min(axis=0)
    return np.asarray(np.argmax(values <= least + EQUAL * np.abs(least), axis=0), dtype=np.int64)
