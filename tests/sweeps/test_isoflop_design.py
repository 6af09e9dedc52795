import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.designs.isoflop import Assignment, Shape, by_ratio, crossed


def shape(width: int, layers: int = 1) -> Shape:
    n = 12 * layers * width * width + 1000 * width
    return Shape(width, layers, n, 6 * n + 12 * layers * width * 128)


FAMILY = [shape(w, max(1, w // 32)) for w in range(16, 1025, 16)]

budgets = st.lists(st.floats(1e9, 1e18), min_size=1, max_size=4, unique=True)
ratios = st.lists(st.floats(0.1, 1000), min_size=1, max_size=6, unique=True)


@settings(max_examples=40, deadline=None)
@given(budgets, ratios)
def test_each_budget_gets_one_shape_per_ratio_and_none_twice(c: list[float], r: list[float]) -> None:
    design = by_ratio(c, r, FAMILY)
    assert sorted({a.budget for a in design}) == sorted(c)
    for budget in c:
        shapes = [a.shape for a in design if a.budget == budget]
        assert len(shapes) == len(set(shapes)) == len(r)
        assert [s.params for s in shapes] == sorted(s.params for s in shapes)


@settings(max_examples=40, deadline=None)
@given(st.floats(1e9, 1e18), st.floats(0.1, 1000))
def test_a_single_ratio_gets_the_nearest_shape_of_all(budget: float, ratio: float) -> None:
    (only,) = by_ratio([budget], [ratio], FAMILY)
    best = min(abs(math.log(s.ratio(budget) / ratio)) for s in FAMILY)
    assert abs(math.log(only.shape.ratio(budget) / ratio)) == best


@settings(max_examples=40, deadline=None)
@given(budgets, ratios, st.randoms(use_true_random=False))
def test_order_and_repetition_of_what_is_given_do_not_matter(c: list[float], r: list[float], random: object) -> None:
    shuffled = [*FAMILY, *FAMILY[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert by_ratio([*reversed(c), c[0]], [*reversed(r), r[0]], shuffled) == by_ratio(c, r, FAMILY)


def test_ratio_is_exact_flops_over_params() -> None:
    s = Shape(width=64, layers=2, params=1000, flops_per_token=6500)
    assert s.ratio(6500 * 20_000.0) == 20.0


def test_two_ratios_that_want_the_same_shape_take_neighbours() -> None:
    design = by_ratio([1e15], [20.0, 20.001], FAMILY)
    places = [FAMILY.index(a.shape) for a in design]
    assert abs(places[0] - places[1]) == 1


def test_crossed_is_every_shape_at_every_budget_once() -> None:
    small, large = shape(32), shape(64)
    assert crossed([2e9, 1e9], [large, small, small]) == [
        Assignment(small, 1e9),
        Assignment(large, 1e9),
        Assignment(small, 2e9),
        Assignment(large, 2e9),
    ]


@pytest.mark.parametrize(
    ("c", "r", "family", "names"),
    [
        ([], [20.0], FAMILY, "search.budgets"),
        ([1e12], [], FAMILY, "search.ratios"),
        ([-1.0], [20.0], FAMILY, "search.budgets"),
        ([1e12], [math.inf], FAMILY, "search.ratios"),
        ([1e12], [1.0, 2.0], FAMILY[:1], "search.width_step"),
    ],
)
def test_what_cannot_make_a_design_names_its_key(
    c: list[float], r: list[float], family: list[Shape], names: str
) -> None:
    with pytest.raises(ValueError, match=names):
        by_ratio(c, r, family)


def test_as_many_shapes_as_ratios_are_enough() -> None:
    assert [one.shape for one in by_ratio([1e12], [1.0, 20.0], [*FAMILY[:2], FAMILY[0]])] == FAMILY[:2]


def test_crossing_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"search\.shapes"):
        crossed([1e12], [])
