"""The lowest curve at every budget among drawn curves, decided by a few of them: a thousand draws of ten thousand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import ties
from analysis.inputs.dataset import Array

Numbers = NDArray[np.int64]
LOOKED_AT = 32
"""Curves of a budget that a draw is decided by. A draw leaves each out with 37 %: all of them once in 10^13 times."""
CELLS = 1 << 20
"""Losses that are put in order at once."""


class Lowest(NamedTuple):
    """At every budget (G,) the number of the lowest curve, -1 where none is drawn, and its ln loss.

    smallest, largest: ln sizes of the drawn curves that go there, NaN without any.
    """

    curve: Numbers
    loss: Array
    smallest: Array
    largest: Array


@dataclass(frozen=True, eq=False)
class Leaders:
    """Who may be lowest, smallest or largest at each budget: places (G, L) in the order of size, K for none.

    losses: ln loss (K, G), infinite where a curve does not go. order: numbers of the curves by size (K,); sizes: ln of
    theirs, in that order.
    """

    losses: Array
    order: Numbers
    sizes: Array
    low: Numbers
    small: Numbers
    large: Numbers

    @classmethod
    def of(cls, losses: Array, sizes: Array) -> Leaders:
        """Return those of curves with these ln losses (K, G) and ln sizes (K,)."""
        order = np.argsort(sizes, kind="stable")
        count, width = losses.shape
        parts: list[tuple[Numbers, Numbers, Numbers]] = []
        step = max(1, CELLS // max(count, 1))
        for begin in range(0, width, step):
            block = losses[order, begin : begin + step].T
            there = np.isfinite(block)
            lowest = _first(np.where(there, block, np.inf), there)
            small, large = _first(~there, there), _first(~there[:, ::-1], there[:, ::-1])
            parts.append((lowest, small, np.where(large == count, count, count - 1 - large)))
        low, small, large = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(losses, order, sizes[order], low, small, large)

    def among(self, drawn: NDArray[np.bool_]) -> Lowest:
        """Return the lowest of the curves that are drawn (K,); of equal losses that of the smaller model."""
        count, budgets = len(self.order), np.arange(self.losses.shape[1])
        there = np.append(drawn[self.order], False)  # the last place is nobody's
        every = self.losses[np.append(self.order, 0)[self.low], budgets[:, None]]
        hit = there[self.low]
        loss = np.where(hit, every, np.inf)
        least = loss.min(axis=1)
        bound = least + ties.EQUAL * np.abs(least)
        place = np.where(hit & (loss <= bound[:, None]), self.low, count).min(axis=1)
        # Behind the last of them may come others as low, where there are others at all.
        open_ = (every[:, -1] <= bound) & (self.low[:, -1] < count)
        ends = []
        for looked_at in (self.small, self.large):
            first = np.argmax(there[looked_at], axis=1)
            found = looked_at[budgets, first]
            open_ |= ~there[found] & (looked_at[:, -1] < count)
            ends.append(np.where(there[found], np.append(self.sizes, np.nan)[found], np.nan))
        lowest = Lowest(np.append(self.order, -1)[place], least, *ends)
        if self.low.shape[1] < count and open_.any() and there.any():
            self._look_at_all(lowest, np.flatnonzero(open_), self.order[there[:-1]])
        return lowest

    def _look_at_all(self, found: Lowest, budgets: Numbers, drawn: Numbers) -> None:
        """Decide some budgets by all curves that are drawn (their numbers, in the order of size)."""
        losses = self.losses[drawn[:, None], budgets[None, :]]
        there, sizes = np.isfinite(losses), self.sizes[np.isin(self.order, drawn)][:, None]
        some = there.any(axis=0)
        found.curve[budgets] = np.where(some, drawn[ties.lowest_rows(losses)], -1)
        found.loss[budgets] = losses.min(axis=0)
        found.smallest[budgets] = np.where(some, np.where(there, sizes, np.inf).min(axis=0), np.nan)
        found.largest[budgets] = np.where(some, np.where(there, sizes, -np.inf).max(axis=0), np.nan)


def _first(keys: NDArray[np.float64] | NDArray[np.bool_], there: NDArray[np.bool_]) -> Numbers:
    """Return the places (G, L) of the least of each row of keys (G, K), rising; K where nobody is `there`."""
    count = keys.shape[1]
    most = min(LOOKED_AT, count)
    if keys.dtype == np.bool_:
        places = np.argsort(keys, axis=1, kind="stable")[:, :most]
    else:
        places = np.argpartition(keys, most - 1, axis=1)[:, :most]
        values = np.take_along_axis(keys, places, axis=1)
        places = np.take_along_axis(places, np.argsort(values, axis=1, kind="stable"), axis=1)
    return np.asarray(np.where(np.take_along_axis(there, places, axis=1), places, count), dtype=np.int64)
