"""Arithmetic on sets of time intervals. A set is two arrays, starts and ends, of disjoint intervals in their order.

Every function takes and returns such sets, but `union`, which makes one from intervals that overlap and have no order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals [start, end) in their order, none of them empty."""

    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> float:
        """The sum of their lengths."""
        return float((self.end - self.start).sum())

    def holds(self, moments: Floats) -> NDArray[np.bool_]:
        """Say of each moment whether it lies in one of them."""
        place = np.searchsorted(self.start, moments, side="right") - 1
        inside: NDArray[np.bool_] = (
            (place >= 0) & (moments < self.end[np.maximum(place, 0)]) if len(self) else place > 0
        )
        return inside


NOTHING = Intervals(np.empty(0), np.empty(0))


def union(start: Floats, end: Floats) -> Intervals:
    """Return what any of these intervals covers; those that touch become one. In any order, overlapping as they may."""
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return NOTHING
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(start[first], reach[last])


def union_of(*sets: Intervals) -> Intervals:
    """Return what any of the sets covers."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return what both cover."""
    if not len(a) or not len(b):
        return NOTHING
    first = np.searchsorted(b.end, a.start, side="right")  # of b that ends after a's beginning
    behind = np.searchsorted(b.start, a.end, side="left")  # of b that begins at or after a's end
    count = np.maximum(behind - first, 0)
    of_a = np.repeat(np.arange(len(a)), count)
    of_b = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    return Intervals(np.maximum(a.start[of_a], b.start[of_b]), np.minimum(a.end[of_a], b.end[of_b]))


def complement(a: Intervals, start: float, end: float) -> Intervals:
    """Return what `a` leaves of [start, end)."""
    inside = clip(a, start, end)
    edges = np.concatenate(([start], inside.end)), np.concatenate((inside.start, [end]))
    real = edges[1] > edges[0]
    return Intervals(edges[0][real], edges[1][real])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return what `a` covers and `b` does not."""
    if not len(a) or not len(b):
        return a
    return intersection(a, complement(b, float(a.start[0]), float(a.end[-1])))


def clip(a: Intervals, start: float, end: float) -> Intervals:
    """Return what lies in [start, end)."""
    return intersection(a, Intervals(np.array([start]), np.array([end]))) if end > start else NOTHING


def overlap(a: Intervals, b: Intervals) -> float | None:
    """Return the share of `a` in which `b` goes on too, 0 to 1; None where `a` is empty."""
    return intersection(a, b).length / a.length if len(a) else None
