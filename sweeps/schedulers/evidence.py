"""Whether early ranks predict final ones: a likelihood ratio that grows only by chance where they do not."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

STRENGTHS = (0.5, 1.0)
"""How strongly early places may tell the order: at 1 a trial among the first tenth is as good as the best of ten."""
TOP = 3
"""Number of best trials whose order counts: the order of the bad ones does not matter to a search."""


def log_ratio(weights: Sequence[float]) -> float:
    """Return how much likelier an order is by logarithms of weights, best first, than by chance, as a logarithm.

    The next in the order is drawn from those that are left, by their weights. Source: Plackett, The analysis of
    permutations, Applied Statistics 24 (1975).
    """
    given = np.asarray(weights, dtype=float)
    left = np.logaddexp.accumulate(given[::-1])[::-1]
    return float((given - left + np.log(np.arange(len(given), 0, -1))).sum())


class Order:
    """The final order of trials that end one after the other, and how much better one strength tells it than chance.

    A new trial comes to each position of the order with equal chances, whatever came before, if early places do not
    tell: then the ratio has the mean 1 after any number of trials, and is ever above x with a probability of at most
    1 / x (Ville 1939). Positions behind the best `top` count as one.
    """

    def __init__(self, strength: float, top: int = TOP) -> None:
        self.strength, self.top = strength, top
        self.log = 0.0
        self._values: list[float] = []
        self._weights: list[float] = []

    def add(self, place: float, value: float) -> None:
        """Take in a trial's early place (0 to 1, lower is better) and its final value, infinity where it diverged.

        Of positions that equal values leave open it is given the one that speaks most against the places.
        """
        weight = -self.strength * math.log(place)
        count = len(self._values) + 1
        orders = ([*self._weights[:k], weight, *self._weights[k:]] for k in range(count))
        logs = np.array([log_ratio(order) for order in orders])
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
        """Take in another trial, as :meth:`Order.add` does."""
        for order in self._orders:
            order.add(place, value)
