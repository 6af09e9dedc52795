"""Whether early ranks predict final ones: a likelihood ratio that grows only by chance where they do not."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STRENGTHS = (0.5, 1.0)
"""Strengths at which early ranks may predict final ones: at 1 a trial in the first tenth is like the best of ten."""
TOP = 3
"""Number of best trials whose order counts: the order of the bad ones does not matter to a search."""


def log_ratios(weights: Sequence[float], weight: float) -> NDArray[np.float64]:
    """Return the log likelihood ratio of an order against chance, for each position where one more item may be put.

    weights: logarithms of the items' weights, best first; weight: that of the item to insert. The next in the order is
    drawn from those that are left, by their weights. Source: Plackett, The analysis of permutations, Applied
    Statistics 24 (1975).
    """
    left = np.logaddexp.accumulate(np.array([*weights, -np.inf])[::-1])[::-1]
    until = np.cumsum(np.logaddexp(left, weight))  # draws up to the new item, which is among those that are left
    after = np.append(np.cumsum(left[-2::-1])[::-1], 0.0)
    chance = np.log(np.arange(1, len(left) + 1)).sum()
    ratios: NDArray[np.float64] = math.fsum(weights) + weight - until - after + chance
    return ratios


class Order:
    """The final order of trials that end one after the other, and its likelihood ratio at one strength against chance.

    If early ranks do not predict final ones, a new trial is equally likely to end at each position of the order,
    whatever came before: the ratio then is a martingale of mean 1 and ever exceeds x with a probability of at most
    1 / x (Ville 1939). Positions behind the best `top` count as one.
    """

    def __init__(self, strength: float, top: int = TOP) -> None:
        self.strength, self.top = strength, top
        self.log = 0.0
        self._values: list[float] = []
        self._weights: list[float] = []

    def add(self, place: float, value: float) -> None:
        """Add a trial's place at early rungs (0 to 1, lower is better) and its final value, infinity where it diverged.

        Among trials of equal final values it is put where the ratio is lowest.
        """
        weight = -self.strength * math.log(place)
        count = len(self._values) + 1
        logs = log_ratios(self._weights, weight)
        chances = np.exp(logs - logs.max())
        factors = chances * (count / chances.sum())
        if count > self.top:
            factors[self.top :] = factors[self.top :].mean()
        first, last = bisect_left(self._values, value), bisect_right(self._values, value)
        self.log += math.log(float(factors[first : last + 1].min()))
        self._values.insert(last, value)
        self._weights.insert(last, weight)


class Odds:
    """Likelihood ratio of the final order, early ranks predicting it against not: the mean over :data:`STRENGTHS`."""

    def __init__(self) -> None:
        self._orders = [Order(strength) for strength in STRENGTHS]

    @property
    def value(self) -> float:
        """The ratio, 1 before any trial has ended."""
        return sum(math.exp(min(order.log, 100.0)) for order in self._orders) / len(self._orders)

    def add(self, place: float, value: float) -> None:
        """Add another trial, as :meth:`Order.add` does."""
        for order in self._orders:
            order.add(place, value)
