"""Branch and bound: candidates in the order of their least time, priced exactly until no other can be among the best.

The best are the true ones of the model that prices them, as though all had been priced: what is left out is slower even
at its bound.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from study.planning.parallel.progress import Progress, silent
from study.planning.parallel.space import Candidate

MADE_UP = 1e-9
"""By how much of itself a bound may be above an exact time for the last digits' sake."""


OFTEN = 1 << 10
"""Candidates between two words of progress."""


class Timed(Protocol):
    """A step's time as it is predicted."""

    @property
    def seconds(self) -> float:
        """Of a step [s]."""


Time = TypeVar("Time", bound=Timed)


@dataclass(frozen=True)
class Bounds:
    """What a candidate needs at least. memory: bytes of each GPU. seconds: of a step, cheap, as every one is asked.

    closer: the same nearer to the truth, for those that are not dropped by the first.
    """

    memory: Callable[[Candidate], float]
    seconds: Callable[[Candidate], float]
    closer: Callable[[Candidate], float]


@dataclass(frozen=True)
class Priced(Generic[Time]):
    """A candidate with what the fullest GPU needs [bytes] and its step."""

    candidate: Candidate
    needed: int
    time: Time

    @property
    def order(self) -> tuple[float, int, int]:
        """What the best are sorted by: time, then memory, then the order in which candidates are made."""
        return self.time.seconds, self.needed, self.candidate.number


@dataclass(frozen=True)
class Found(Generic[Time]):
    """The best that fit, the first is the fastest. too_large: how many do not fit. slower: how many were not priced, as
    their least time is above that of the last of the best. priced: how many were."""

    best: tuple[Priced[Time], ...]
    too_large: int
    slower: int
    priced: int


@dataclass(frozen=True)
class Prices(Generic[Time]):
    """What a candidate needs of the fullest GPU [bytes] and its step, exactly by their models.

    needed: of one that does not fit it may be less, but still more than there is.
    """

    needed: Callable[[Candidate], int]
    timed: Callable[[Candidate], Time]


def search(
    candidates: Sequence[Candidate],
    bound: Bounds,
    prices: Prices[Time],
    memory: int,
    top: int,
    *,
    told: Progress = silent,
) -> Found[Time]:
    """Return the `top` fastest candidates that a GPU's memory holds."""
    waiting = []
    for place, one in enumerate(candidates):
        if place % OFTEN == 0:
            told("least memory and time of layouts", place, len(candidates))
        if bound.memory(one) <= memory:
            waiting.append((bound.seconds(one), one.number, False, one))
    too_large = len(candidates) - len(waiting)
    heapq.heapify(waiting)
    best: list[Priced[Time]] = []
    closer = priced = 0
    while waiting:
        seconds, number, close, candidate = waiting[0]
        told("layouts with their messages", closer)
        if len(best) == top and seconds * (1 - MADE_UP) > best[-1].time.seconds:
            break
        if not close:
            closer += 1
            heapq.heapreplace(waiting, (max(seconds, bound.closer(candidate)), number, True, candidate))
            continue
        heapq.heappop(waiting)
        size = prices.needed(candidate)
        if size > memory:
            too_large += 1
            continue
        priced += 1
        bisect.insort(best, Priced(candidate, size, prices.timed(candidate)), key=lambda one: one.order)
        del best[top:]
    return Found(tuple(best), too_large, len(waiting), priced)


def least_memory(
    candidates: Sequence[Candidate],
    bound: Callable[[Candidate], float],
    needed: Callable[[Candidate], int],
    enough: int | None = None,
) -> tuple[Candidate, int] | None:
    """Return the candidate that needs least; with `enough` the first found that needs no more, if one may.

    None: there is none. In the order of least memory, until no other can need less.
    """
    best: tuple[Candidate, int] | None = None
    for least, _, candidate in sorted(((bound(one), one.number, one) for one in candidates), key=lambda e: e[:2]):
        if enough is not None and (least > enough or (best is not None and best[1] <= enough)):
            break
        if best is not None and least >= best[1]:
            break
        size = needed(candidate)
        if best is None or size < best[1]:
            best = candidate, size
    return best
