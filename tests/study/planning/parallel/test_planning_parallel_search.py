"""Branch and bound finds what pricing everything finds, and prices no more than it has to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from study.planning.parallel.search import Bounds, Prices, least_memory, search
from study.planning.parallel.space import Candidate, Layout
from train.spec.config import RunConfig
from train.spec.mesh import Axes

LAYOUT = Layout(RunConfig(), Axes(), 1)


@dataclass(frozen=True)
class Step:
    seconds: float


@dataclass
class Figures:
    """Exact figures and bounds below them, by the candidates' numbers; it notes what is priced."""

    seconds: list[float]
    bytes: list[int]
    slack: list[float]
    priced: list[int] = field(default_factory=list)

    @property
    def candidates(self) -> list[Candidate]:
        return [Candidate(number, LAYOUT, 1) for number in range(len(self.seconds))]

    def needed(self, candidate: Candidate) -> int:
        return self.bytes[candidate.number]

    def timed(self, candidate: Candidate) -> Step:
        self.priced.append(candidate.number)
        return Step(self.seconds[candidate.number])

    def least_memory(self, candidate: Candidate) -> float:
        return self.needed(candidate) * self.slack[candidate.number]

    def least_seconds(self, candidate: Candidate) -> float:
        return self.seconds[candidate.number] * self.slack[candidate.number]

    def closer(self, candidate: Candidate) -> float:
        return self.seconds[candidate.number] * math.sqrt(self.slack[candidate.number])

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.least_memory, self.least_seconds, self.closer)


def figures(rows: list[tuple[int, int, float]]) -> Figures:
    return Figures([float(row[0]) for row in rows], [row[1] for row in rows], [row[2] for row in rows])


ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.sampled_from((0.2, 0.7, 1.0))), max_size=30)


@given(ROWS, st.integers(0, 9), st.integers(1, 4))
def test_the_best_are_those_of_pricing_everything(rows: list[tuple[int, int, float]], memory: int, top: int) -> None:
    known = figures(rows)
    found = search(known.candidates, known.bounds, Prices(known.needed, known.timed), memory, top)
    every = sorted((row[0], row[1], place) for place, row in enumerate(rows) if row[1] <= memory)
    assert [one.order for one in found.best] == every[:top]
    assert found.too_large + found.slower + found.priced == len(rows)
    assert found.priced == len(known.priced) == len(set(known.priced))


@given(ROWS, st.integers(0, 9))
def test_the_smallest_is_that_of_pricing_everything(rows: list[tuple[int, int, float]], enough: int) -> None:
    known = figures(rows)
    found = least_memory(known.candidates, known.least_memory, known.needed)
    least = min((row[1] for row in rows), default=None)
    assert (None if found is None else found[1]) == least
    early = least_memory(known.candidates, known.least_memory, known.needed, enough)
    fits = least is not None and least <= enough
    assert (early is not None and early[1] <= enough) == fits


def test_what_is_slower_at_best_is_not_priced() -> None:
    known = figures([(1, 1, 1.0), (5, 1, 0.5), (9, 1, 0.1), (2, 9, 1.0)])
    found = search(known.candidates, known.bounds, Prices(known.needed, known.timed), 5, 1)
    assert known.priced == [0]
    assert (found.too_large, found.slower, found.priced) == (1, 2, 1)


def test_a_bound_may_be_above_the_time_in_its_last_digits() -> None:
    known = figures([(1, 5, 1.0), (1, 3, 1.0 + 5e-10)])
    found = search(known.candidates, known.bounds, Prices(known.needed, known.timed), 3 + 2, 1)
    assert [one.order for one in found.best] == [(1.0, 3, 1)], "it is as fast, and smaller"
    edge = 1.0 * (1 - 1e-9)
    known = Figures([edge, 1.0], [5, 3], [1.0, 1.0])
    found = search(known.candidates, known.bounds, Prices(known.needed, known.timed), 5, 1)
    assert known.priced == [0, 1] and found.best[0].candidate.number == 0, "a bound of just as much is priced"


def test_memory_counts_to_the_byte() -> None:
    known = figures([(1, 6, 1.0), (2, 5, 1.0), (3, 7, 0.5)])
    found = search(known.candidates, known.bounds, Prices(known.needed, known.timed), 5, 3)
    assert ([one.candidate.number for one in found.best], found.too_large, found.priced) == ([1], 2, 1)


def test_the_first_of_those_that_need_as_little_is_taken() -> None:
    known = figures([(1, 4, 1.0), (1, 4, 0.5), (1, 4, 0.2)])
    found = least_memory(known.candidates, known.least_memory, known.needed)
    assert found is not None and (found[0].number, found[1]) == (2, 4), "the one of the least bound"
    assert least_memory(known.candidates, known.least_memory, known.needed, 0) is None, "every bound is above"
    none = Figures([1.0, 1.0], [1, 1], [0.0, 0.0])
    found = least_memory(none.candidates, none.least_memory, none.needed, 1)
    assert found is not None and found[0].number == 0
