"""Sets of intervals against an oracle that looks at every moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from study.diagnosis.intervals import Intervals, clip, complement, difference, intersection, overlap, union, union_of

LAST = 24
Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST)), max_size=12)


def made(given: Pairs) -> Intervals:
    return union(np.array([a for a, _ in given], dtype=float), np.array([b for _, b in given], dtype=float))


def moments(given: Pairs) -> set[int]:
    """Return the whole numbers n for which [n, n + 1) is covered."""
    return {n for a, b in given for n in range(a, b)}


def covered(found: Intervals) -> set[int]:
    """Return the same of a set, which must be in order, disjoint and without anything empty."""
    assert (found.end > found.start).all()
    assert (found.start[1:] > found.end[:-1]).all() or len(found) < 2
    return {n for a, b in zip(found.start, found.end, strict=True) for n in range(int(a), int(b))}


@given(pairs, pairs)
def test_sets_are_what_each_moment_says(a: Pairs, b: Pairs) -> None:
    one, other = made(a), made(b)
    assert covered(one) == moments(a)
    assert covered(union_of(one, other)) == moments(a) | moments(b)
    assert moments_of(intersection(one, other)) == moments(a) & moments(b)
    assert moments_of(difference(one, other)) == moments(a) - moments(b)
    assert one.length == len(moments(a))
    share = len(moments(a) & moments(b)) / len(moments(a)) if moments(a) else None
    assert overlap(one, other) == share


def moments_of(found: Intervals) -> set[int]:
    """Return the same of a set whose intervals may touch."""
    assert (found.end > found.start).all()
    assert (found.start[1:] >= found.end[:-1]).all()
    return {n for a, b in zip(found.start, found.end, strict=True) for n in range(int(a), int(b))}


@given(pairs, st.integers(0, LAST), st.integers(0, LAST))
def test_windows_cut_and_leave_what_they_should(a: Pairs, first: int, last: int) -> None:
    window = set(range(first, last))
    assert moments_of(clip(made(a), first, last)) == moments(a) & window
    if last > first:
        assert moments_of(complement(made(a), first, last)) == window - moments(a)


@given(pairs, st.lists(st.integers(-1, LAST + 1)))
def test_moments_are_found_in_them(a: Pairs, asked: list[int]) -> None:
    found = made(a).holds(np.array(asked, dtype=float))
    assert found.tolist() == [n in moments(a) for n in asked]
