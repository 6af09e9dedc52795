"""Rungs: their levels, who is promoted, and what a report fills."""

from __future__ import annotations

import math

import pytest

from sweeps.designs.isoflop import Shape
from sweeps.designs.ladder import ladder, nearest
from sweeps.designs.random_nd import random_nd
from sweeps.rungs import Rung, always_enough, brackets, crossed, enter, first_rung, levels
from sweeps.schedulers.random import FullRuns


@pytest.mark.parametrize(
    ("r", "R", "eta", "skip", "expected"),
    [
        (1, 243, 3, 0, (1, 3, 9, 27, 81, 243)), (1, 243, 3, 5, (243,)), (1, 100, 3, 0, (1, 3, 9, 27, 81, 100)),
        (2, 16, 2, 1, (4, 8, 16)), (5, 5, 2, 0, (5,)), (1, 1, 4, 0, (1,)), (1, 2, 2, 0, (1, 2)),
    ],
)  # fmt: skip
def test_levels(r: int, R: int, eta: int, skip: int, expected: tuple[int, ...]) -> None:
    assert levels(r, R, eta, skip) == expected
    assert brackets(r, R, eta) == len(expected) + skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 9, 3), "r=0 and R=9"),
        ((10, 9, 3), "r=10 and R=9"),
        ((1, 9, 1), "eta=1 is not allowed"),
        ((1, 9, 3, 3), "bracket 3 does not exist: r=1, R=9, eta=3 make 3"),
        ((1, 9, 3, -1), "bracket -1 does not exist"),
    ],
)
def test_levels_that_cannot_be(arguments: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        levels(*arguments)


@pytest.mark.parametrize(
    ("least", "R", "eta", "expected"),
    [(1, 243, 3, 1), (2, 243, 3, 3), (3, 243, 3, 3), (10, 100, 3, 12), (12, 100, 3, 12), (13, 100, 3, 34),
     (100, 100, 3, 100),
     (1, 2, 3, 2), (1, 3, 3, 1), (50, 100, 2, 50), (51, 100, 2, 100)],
)  # fmt: skip
def test_the_first_rung_is_counted_down_from_the_end(least: int, R: int, eta: int, expected: int) -> None:
    assert first_rung(least, R, eta) == expected
    with pytest.raises(ValueError, match="eta=1"):
        first_rung(least, R, 1)


@pytest.mark.parametrize(("rungs", "eta", "enough"), [(1, 3, 1), (2, 3, 3), (4, 3, 27), (3, 2, 4)])
def test_how_many_are_enough(rungs: int, eta: int, enough: int) -> None:
    assert always_enough(rungs, eta) == enough


def filled(values: list[float]) -> Rung:
    rung = Rung(4)
    for trial, value in enumerate(values):
        rung.record(trial, value)
    return rung


def test_the_top_of_a_rung_goes_on_best_first() -> None:
    rung = filled([5.0, 1.0, 3.0, 2.0, 4.0, 6.0])
    assert list(rung.promotables(2)) == [1, 3, 2]
    assert list(rung.promotables(3)) == [1, 3]
    assert list(rung.promotables(7)) == []
    rung.promote(1)
    rung.promote(1)
    assert list(rung.promotables(3)) == [3]
    assert rung.promoted == {1}


def test_equal_values_go_on_in_order_of_arrival() -> None:
    assert list(filled([1.0, 1.0, 1.0, 1.0]).promotables(2)) == [0, 1]


def test_what_diverged_never_goes_on() -> None:
    rung = filled([math.nan, math.inf, 1.0, math.inf])
    assert list(rung.promotables(2)) == [2]
    assert not rung.continues(0, 4) and not rung.continues(1, 4)
    assert not filled([math.inf]).continues(0, 2)


def test_a_value_that_is_replaced_keeps_its_arrival_and_what_it_was_promoted_for() -> None:
    rung = filled([1.0, 2.0, 2.0])
    rung.promote(0)
    rung.record(0, 3.0, 5)
    assert rung.since == {0: 5, 1: 4, 2: 4}
    assert [trial for _, _, trial in rung.entries] == [1, 2, 0]
    assert list(rung.promotables(1)) == [1, 2]
    rung.record(2, 0.5)
    assert list(rung.promotables(3)) == [2]
    rung.record(2, 2.0)
    assert list(rung.promotables(1)) == [1, 2]
    assert len(rung.entries) == 3 and len(rung.open) == 2


def test_a_value_that_comes_again_keeps_its_place_among_equals() -> None:
    rung = Rung(1)
    for trial in (7, 3, 7):
        rung.record(trial, 1.0)
    assert list(rung.promotables(1)) == [7, 3]


def test_who_is_promoted_before_being_recorded_is_not_open() -> None:
    rung = Rung(1)
    rung.promote(3)
    rung.record(3, 1.0)
    assert list(rung.promotables(1)) == []


@pytest.mark.parametrize(
    ("trial", "eta", "tolerance", "goes_on"),
    [(0, 2, 0.0, True), (1, 2, 0.0, True), (2, 2, 0.0, False), (2, 2, 1.0, True), (2, 2, 0.99, False),
     (0, 9, 0.0, True),
     (1, 9, 0.0, False), (3, 1, 0.0, True)],
)  # fmt: skip
def test_the_top_or_what_is_as_good_continues(trial: int, eta: int, tolerance: float, goes_on: bool) -> None:
    assert filled([1.0, 2.0, 3.0, 4.0]).continues(trial, eta, tolerance) is goes_on


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [(0, 0, []), (0, 1, [0]), (0, 3, [0, 1]), (0, 9, [0, 1, 2]), (1, 2, []), (1, 3, [1]), (3, 3, []), (3, 1, []),
     (9, 12, []),
     (2, 8, [1])],
)  # fmt: skip
def test_levels_that_a_report_crosses(before: int, now: int, expected: list[int]) -> None:
    assert list(crossed((1, 3, 9), before, now)) == expected


def test_a_report_after_a_retry_replaces_what_was_entered_then_or_later() -> None:
    rungs = [Rung(1), Rung(3), Rung(9)]
    assert enter(rungs, 7, 0, 4, 2.0) == [0, 1]
    assert enter(rungs, 7, 4, 2, 3.0) == [0]
    assert enter(rungs, 7, 2, 3, 2.5) == [1]
    assert enter(rungs, 7, 3, 4, 9.0) == []
    assert enter(rungs, 7, 3, 9, 1.0) == [2]
    assert [rung.of[7][0] for rung in rungs] == [3.0, 2.5, 1.0]
    assert [rung.since[7] for rung in rungs] == [2, 3, 9]
    assert enter([Rung(0)], 1, 0, 0, 1.0) == [], "who was never there is not there again"


FAMILY = [Shape(64, 2, 100, 600), Shape(128, 2, 400, 2400), Shape(128, 4, 400, 2500), Shape(256, 4, 1600, 9600)]


def test_the_nearest_sizes_are_found_by_their_logarithm() -> None:
    assert nearest([190, 210, 3000], FAMILY) == [FAMILY[0], FAMILY[1], FAMILY[3]]
    assert nearest([200], FAMILY[::-1]) == [FAMILY[0]], "a tie goes to the smaller one"
    with pytest.raises(ValueError, match="the family has no shapes"):
        nearest([100], [])


@pytest.mark.parametrize("wrong", [[], [0.0], [-1.0], [math.inf], [math.nan]])
def test_what_is_no_list_of_positive_numbers_is_refused_by_its_key(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match=r"search\.params"):
        nearest(wrong, FAMILY)
    with pytest.raises(ValueError, match=r"search\.ratios"):
        ladder(FAMILY, wrong)
    with pytest.raises(ValueError, match=r"search\.ratios"):
        random_nd([100], wrong, FAMILY, 2, 0)
    with pytest.raises(ValueError, match=r"search\.params"):
        random_nd(wrong, [20.0], FAMILY, 2, 0)


def test_a_random_design_has_as_many_runs_as_asked_and_at_least_one() -> None:
    assert [len(random_nd([100, 1600], [5, 20], FAMILY, count, 0)) for count in (1, 2, 7)] == [1, 2, 7]
    with pytest.raises(ValueError, match=r"search\.points=0 is not allowed"):
        random_nd([100], [20], FAMILY, 0, 0)
    assert random_nd([100, 1600], [5, 20], FAMILY, 4, 0) != random_nd([100, 1600], [5, 20], FAMILY, 4, 1)
    assert all(5 <= run.ratio <= 20 for run in random_nd([100, 1600], [20, 5], FAMILY, 9, 3))


def test_a_full_run_trains_to_a_resource_of_at_least_one() -> None:
    assert [unit.until for unit in FullRuns(1, 5).candidates()] == [1]
    assert FullRuns(1, 0).decide() is None
    with pytest.raises(ValueError, match="R=0 is not allowed"):
        FullRuns(0)
