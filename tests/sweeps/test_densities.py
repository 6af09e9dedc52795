"""Densities of good trials and drifting functions: against sums written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeps.samplers.rung_density import DensityDraws, DensityRatio
from sweeps.schedulers.drifting_gp import GRID, Kernel, Posterior, likelihoods
from sweeps.space import Choice, Interval, Space
from tests.sweeps.searches import rung_of


@pytest.mark.parametrize(
    "wrong", [(0, 0.1, 0.1), (-1, 0.1, 0.1), (1, 1, 0.1), (1, -0.1, 0.1), (1, 0.1, 1), (1, 0.1, -0.1)]
)
def test_kernels_that_make_no_sense_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="a width above zero, and shares"):
        Kernel(*wrong)


def test_a_kernel_falls_with_distance_and_time_as_its_formula_says() -> None:
    found = Kernel(0.5, 0.19, 0.1).between(
        np.array([[0.0, 0.0]]), np.array([1.0]), np.array([[0.3, 0.4], [0.0, 0.0]]), np.array([1.0, 3.0])
    )
    assert found == pytest.approx(np.array([[0.9 * math.exp(-0.5), 0.9 * 0.81]]))
    assert Kernel(0.5, 0.0, 0.0).between(np.zeros((1, 2)), np.zeros(1), np.zeros((1, 2)), np.ones(1)) == 1


def test_one_observation_by_hand() -> None:
    kernel = Kernel(0.5, 0.19, 0.1)
    posterior = Posterior(kernel, np.zeros((1, 1)), np.zeros(1), np.array([2.0]))
    far = np.array([[0.5]]), np.array([2.0])
    alike = 0.9 * math.exp(-0.5) * 0.81
    assert posterior.mean(*far) == pytest.approx([alike * 2.0], rel=1e-6)
    assert posterior.variance(*far) == pytest.approx([0.9 - alike**2], rel=1e-6)
    assert posterior.expecting(*far).mean(*far) == pytest.approx(posterior.mean(*far), rel=1e-6)


def test_likelihoods_are_those_of_a_normal_distribution() -> None:
    random = np.random.default_rng(0)
    x, t, y = random.random((6, 2)), np.arange(6.0), random.normal(size=6)
    found = likelihoods(x, t, y)
    expected = []
    for kernel in GRID:
        covariance = kernel.between(x, t, x, t) + kernel.noise * np.eye(6)
        expected.append(-0.5 * y @ np.linalg.solve(covariance, y) - 0.5 * np.linalg.slogdet(covariance)[1])
    differences = found - np.array(expected)
    assert differences == pytest.approx(np.full(len(GRID), differences[0]), abs=1e-4), "but for what is the same to all"
    assert len(GRID) == len({*GRID}) == 36


@pytest.mark.parametrize("wrong", [{"enough": 3}, {"good": 0.0}, {"good": 1.0}, {"explore": -0.1}, {"explore": 1.1}])
def test_ratios_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least 4 trials"):
        DensityRatio(0, **wrong)  # type: ignore[arg-type]


def test_edges_of_a_ratio_that_are_allowed() -> None:
    assert DensityRatio(0, enough=4, good=0.5, explore=0.0).explore == 0
    assert DensityRatio(0, explore=1.0).explore == 1


@pytest.mark.parametrize(("count", "split"), [(11, None), (12, 12), (13, 13)])
def test_a_rung_is_believed_once_it_has_enough(count: int, split: int | None) -> None:
    points = [[n / 100] for n in range(count)]
    found = DensityRatio(0).split(points, [rung_of([float(n) for n in range(count)])], (0,))
    assert (None if found is None else len(found[0].points) + len(found[1].points)) == split


def test_the_highest_rung_with_enough_divides_good_from_bad() -> None:
    points = [[n / 100] for n in range(40)]
    low, high = rung_of([float(40 - n) for n in range(40)]), rung_of([float(n) for n in range(40)])
    found = DensityRatio(0).split(points, [low, high, rung_of([1.0])], (0,))
    assert found is not None
    assert found[0].points.ravel() == pytest.approx([n / 100 for n in range(6)])
    assert found[1].points.ravel() == pytest.approx([n / 100 for n in range(6, 40)])


def test_categories_lie_in_the_middle_of_their_share_and_numbers_where_they_are() -> None:
    space = Space({"kind": Choice(("a", "b", "c")), "size": Choice((1, 2, 3), True), "lr": Interval(0, 1)})
    draws = DensityDraws(space, 0)
    assert draws.categories == (3, 0, 0)
    assert [draws._inside(0, place) for place in (0.0, 0.5, 1.0)] == pytest.approx([1 / 6, 0.5, 5 / 6])
    assert draws._inside(1, 0.5) == 0.5 and draws._inside(2, 0.123) == 0.123
    assert [space.domains["kind"].at(draws._inside(0, place)) for place in (0.0, 0.5, 1.0)] == ["a", "b", "c"]


def test_a_pick_is_a_candidate_near_the_good_ones() -> None:
    points = [[n / 40] for n in range(40)]
    rungs = [rung_of([abs(n - 8) / 40 for n in range(40)])]
    candidates = [[0.95], [0.2], [0.7]]
    always = DensityRatio(1, explore=0.0)
    assert [always.pick(trial, candidates, points, rungs) for trial in range(5)] == [1] * 5
    assert [DensityRatio(1, explore=1.0).pick(trial, candidates, points, rungs) for trial in range(5)] == [0] * 5
    assert always.pick(0, candidates, [], []) == 0
