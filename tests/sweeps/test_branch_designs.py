"""Ladder, random_nd, trunk and branch as pure designs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.designs.isoflop import Shape
from sweeps.designs.ladder import ladder, nearest
from sweeps.designs.random_nd import random_nd
from sweeps.designs.trunk_and_branch import Part, saved, trunk_and_branch

FAMILY = [Shape(width, 2, 12 * width**2, 72 * width**2) for width in range(32, 1025, 32)]


def test_three_budgets_of_one_size() -> None:
    parts = trunk_and_branch([4000, 1000, 2000], 0.2, 100, 50)
    assert parts == [
        Part(0, 800, None),
        Part(800, 1600, 0),
        Part(1600, 3200, 1),
        Part(800, 1000, 0, True),
        Part(1600, 2000, 1, True),
        Part(3200, 4000, 2, True),
    ]
    assert saved(parts) == (3200 + 200 + 400 + 800, 7000)


def test_a_share_that_rounds_below_a_whole_step_begins_with_that_step() -> None:
    assert 10 * (1 - 0.9) < 1
    assert trunk_and_branch([10], 0.9, 1, 0) == [Part(0, 1, None), Part(1, 10, 0, True)]


@given(
    st.lists(st.integers(2_000, 10**6), min_size=1, max_size=8), st.floats(0.05, 0.5), st.sampled_from([64, 100, 512])
)
def test_branches_begin_at_the_end_of_a_step_and_every_budget_has_one(
    budgets: list[int], decay: float, batch: int
) -> None:
    parts = trunk_and_branch(budgets, decay, batch, 0)
    trunk = [part for part in parts if not part.cooldown]
    assert sorted({part.end for part in parts if part.cooldown}) == sorted(set(budgets))
    assert all(part.end % batch == 0 for part in trunk)
    assert [part.begin for part in trunk] == [0, *(part.end for part in trunk[:-1])]
    for number, part in enumerate(parts):
        assert (part.parent is None) == (part.begin == 0)
        if part.parent is not None:
            assert part.parent < number and parts[part.parent].end == part.begin and not parts[part.parent].cooldown
        if part.cooldown:  # never shorter than asked, and by less than a step longer
            assert 0 <= (part.end - part.begin) - decay * part.end < batch + 1e-6 * part.end
    spent, apart = saved(parts)
    assert spent <= apart


@pytest.mark.parametrize(
    ("budgets", "decay", "warmup", "said"),
    [([], 0.2, 0, "needs token budgets"), ([1000], 1.0, 0, "decay_fraction"), ([1000], 0.2, 900, "warmup")],
)
def test_what_cannot_branch_is_named(budgets: list[int], decay: float, warmup: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trunk_and_branch(budgets, decay, 100, warmup)


def test_a_ladder_is_every_size_at_every_ratio() -> None:
    shapes = nearest([1e5, 1.1e5, 1e6], FAMILY)
    assert [shape.width for shape in shapes] == [96, 288]
    assert [(rung.shape.width, rung.ratio) for rung in ladder(shapes, [20, 5])] == [
        (96, 5),
        (96, 20),
        (288, 5),
        (288, 20),
    ]
    with pytest.raises(ValueError, match="needs sizes"):
        ladder([], [1.0])


@given(st.integers(1, 40), st.integers(0, 3))
def test_random_runs_cover_both_ranges_in_equal_parts(count: int, seed: int) -> None:
    runs = random_nd([1e5, 1e7], [5, 80], FAMILY, count, seed)
    assert runs == random_nd([1e7, 1e5], [80, 5], FAMILY, count, seed)
    parts = sorted(int(math.log(run.ratio / 5) / math.log(16) * count) for run in runs)
    assert parts == list(range(count))
    assert all(0.4e5 < run.shape.params < 2.5e7 for run in runs)
