"""Newton's steps: what a step is, which are taken, and how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.estimation.newton import _Row, _steps, _taken, refine
from analysis.estimation.optimizer import Array, Evaluate, Index, Minimum


def test_a_step_solves_the_hessian() -> None:
    generator = np.random.default_rng(0)
    hessian = np.array([m @ m.T + 0.5 * np.eye(3) for m in generator.normal(size=(4, 3, 3))])
    scale = np.array([1.0, 1e4, 1e-3])
    hessian = hessian * scale[:, None] * scale[None, :]
    gradient = generator.normal(size=(4, 3)) * scale * 1e-4
    step, inverse = _steps(hessian, gradient)
    np.testing.assert_allclose(step, -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0], rtol=1e-9)
    np.testing.assert_allclose(inverse, np.linalg.inv(hessian), rtol=1e-9)


def test_steps_go_downhill_where_the_hessian_does_not() -> None:
    step, inverse = _steps(np.array([np.diag([2.0, -4.0])]), np.array([[1.0, 1.0]]))
    np.testing.assert_allclose(step, [[-0.5, -0.25]])
    np.testing.assert_allclose(inverse, [np.diag([0.5, 0.25])])


def test_long_steps_are_cut_to_two_and_keep_their_direction() -> None:
    hessian = np.array([np.eye(2)] * 3)
    step, _ = _steps(hessian, np.array([[8.0, -4.0], [1.9, 0.1], [0.0, 0.0]]))
    np.testing.assert_allclose(step, [[-2.0, 1.0], [-1.9, -0.1], [0.0, 0.0]])


def test_nothing_moves_along_what_is_flat() -> None:
    """Scaled, the eigenvalues are 1 + c and 1 - c: below 1e-13 of the larger is flat."""
    for gap, flat in ((4e-13, False), (1e-13, True)):
        c = 1.0 - gap
        step, _ = _steps(np.array([[[1.0, c], [c, 1.0]]]), np.array([[1e-13, -1e-13]]))
        if flat:
            np.testing.assert_array_equal(np.abs(step) < 1e-12, True)
        else:
            np.testing.assert_allclose(step, [[-0.25, 0.25]], rtol=1e-2)


def test_constants_that_do_nothing_are_scaled_by_a_hundred_millionth_of_the_largest() -> None:
    """(1e-20, 1) on the diagonal: the first is taken as 1e-16, scaled 1e-4, of which the inverse is 1e4."""
    _, inverse = _steps(np.array([np.diag([1e-20, 1.0])]), np.zeros((1, 2)))
    np.testing.assert_allclose(inverse[0], np.diag([1e20, 1.0]))
    _, inverse = _steps(np.array([np.diag([1e-30, 1.0])]), np.zeros((1, 2)))
    np.testing.assert_allclose(inverse[0], np.diag([0.0, 1.0]))  # scaled it is 1e-14: flat
    step, inverse = _steps(np.zeros((1, 2, 2)), np.ones((1, 2)))
    np.testing.assert_array_equal(inverse, 0.0)
    np.testing.assert_array_equal(step, 0.0)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_a_steps_unit_is_that_of_the_constants_alone(unit: float) -> None:
    """Values in other units scale Hessian and gradient alike, also where one constant does next to nothing."""
    hessian = np.array([[[2.0, 1e-10], [1e-10, 1e-20]]])
    step, inverse = _steps(unit * hessian, unit * np.array([[0.1, 1e-22]]))
    whole, full = _steps(hessian, np.array([[0.1, 1e-22]]))
    np.testing.assert_allclose(step, whole, rtol=1e-9)
    np.testing.assert_allclose(inverse * unit, full, rtol=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_overflowed_is_left_out(sign: float) -> None:
    step, _ = _steps(np.array([[[2.0, sign * np.inf], [sign * np.inf, 4.0]]]), np.array([[1.0, 1.0]]))
    np.testing.assert_allclose(step, [[-0.5, -0.25]])


def taken(values: Any, gradients: Any, start: float = 1.0) -> tuple[_Row, list[Array]]:
    """Try steps of -1 from 0 with gradient 1 and curvature 1; the k-th trial has the k-th value and gradient."""
    seen: list[Array] = []
    count = len(values[0])

    def evaluate(theta: Array) -> tuple[Array, Array]:
        seen.append(theta[:, 0].copy())
        k = min(len(seen), len(values)) - 1
        return np.array(values[k]), np.array(gradients[k])[:, None]

    at = _Row(np.zeros((count, 1)), np.full(count, start), np.ones((count, 1)))
    return _taken(evaluate, at, -np.ones((count, 1)), np.ones((count, 1, 1))), seen


def test_a_step_is_taken_where_the_value_falls() -> None:
    """By 1e-4 of what the gradient promises, or at the same value where the gradient falls by a tenth."""
    limit = 1.0 - 1e-4
    first = [limit, np.nextafter(limit, 2), 1.0, 1.0, 1.0 + 1e-13, 1.0 + 3e-13, 1.0, np.nan]
    slopes = [5.0, 5.0, np.sqrt(0.89), np.sqrt(0.91), 0.5, 0.5, 5.0, 0.0]
    at, seen = taken([first, [3.0] * 8], [slopes, [9.0] * 8])
    np.testing.assert_array_equal(at.moved, [True, False, True, False, True, False, False, False])
    np.testing.assert_array_equal(at.theta[:, 0], np.where(at.moved, -1.0, 0.0))
    np.testing.assert_array_equal(at.value, np.where(at.moved, first, 1.0))
    np.testing.assert_array_equal(at.gradient[:, 0], np.where(at.moved, slopes, 1.0))
    # Six trials in all, each half as long, of those rows alone that have not moved.
    np.testing.assert_array_equal([s[1] for s in seen], [-1.0, -0.5, -0.25, -0.125, -0.0625, -0.03125])
    np.testing.assert_array_equal([s[0] for s in seen], [-1.0] * 6)


def test_what_is_gained_is_in_the_units_of_the_value() -> None:
    """Values and gradients a hundred times and ten times as large: by 1e-2, or within 1e-11 of the value."""

    def evaluate(theta: Array) -> tuple[Array, Array]:
        return np.array([100.0 - 1.1e-2, 100.0 - 0.9e-2, 100.0 + 0.9e-11, 100.0 + 1.1e-11]), np.array(
            [[50.0], [50.0], [5.0], [5.0]]
        )

    at = _Row(np.zeros((4, 1)), np.full(4, 100.0), np.full((4, 1), 10.0))
    moved = _taken(evaluate, at, -np.ones((4, 1)), np.ones((4, 1, 1))).theta[:, 0]
    np.testing.assert_array_equal(moved != 0.0, [True, True, True, False])
    np.testing.assert_array_equal(moved, [-1.0, -0.5, -1.0, 0.0])


@pytest.mark.parametrize(("start", "most"), [(1e14, 1e3), (1.1e11, 1.1), (0.9e11, 0.9e-2), (1e10, 1e-3)])
def test_where_the_fall_foreseen_is_rounding_the_gradient_tells(start: float, most: float) -> None:
    """A search stopped a step short, at a gradient of 1e-11: the value of its last one rose by 1e-12, all of it noise.

    A constant was off by 1e-6, under one kernel in one order of the rows, where logs are known to four units of the
    last place.
    """
    at, _ = taken([[start + 0.9 * most, start + 1.2 * most, start + 0.9 * most]] * 6, [[0.5, 0.5, 2.0]] * 6, start)
    np.testing.assert_array_equal(at.moved, [True, False, False])


def test_half_a_step_has_to_gain_half_as_much() -> None:
    at, seen = taken([[2.0, 2.0], [1.0 - 0.5e-4, 1.0 - 0.4e-4], [3.0, 3.0]], [[5.0, 5.0]] * 3)
    np.testing.assert_array_equal(at.theta[:, 0], [-0.5, 0.0])
    assert len(seen) == 6


def test_rows_that_moved_stay_and_the_search_ends_with_the_last() -> None:
    at, seen = taken([[0.5, 2.0], [0.1, 0.5]], [[0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(at.theta[:, 0], [-1.0, -0.5])
    np.testing.assert_array_equal(at.value, [0.5, 0.5])
    assert len(seen) == 2


def test_gradients_are_measured_by_the_metric() -> None:
    """Falling from (1, 1) to (1.2, 0) is a fall where the second counts for more."""

    def evaluate(theta: Array) -> tuple[Array, Array]:
        return np.ones(1), np.array([[1.2, 0.0]])

    for weights, moved in (((1.0, 4.0), True), ((4.0, 1.0), False)):
        at = _Row(np.zeros((1, 2)), np.ones(1), np.ones((1, 2)))
        assert _taken(evaluate, at, -np.ones((1, 2)), np.diag(weights)[None]).moved[0] == moved


def test_rounds_are_no_more_than_needed() -> None:
    """A quadratic is solved by one step; the next is none, and ends it. Rows leave when they are done."""
    counts: list[int] = []
    centre = np.array([[0.5, -0.25], [0.0, 0.0], [30.0, 0.0]])

    def restrict(index: Index) -> Evaluate:
        return lambda x: (((x - centre[index]) ** 2).sum(axis=1), 2 * (x - centre[index]))

    def hessian(index: Index, x: Array) -> Array:
        counts.append(len(index))
        return np.tile(2 * np.eye(2), (len(x), 1, 1))

    start = Minimum(np.zeros((3, 2)), np.zeros(3), np.full(3, 9.0), np.zeros((3, 2, 2)), 5)
    found = refine(restrict, hessian, start)
    assert counts == [3, 2] + [1] * 10
    np.testing.assert_allclose(found.theta, [[0.5, -0.25], [0.0, 0.0], [24.0, 0.0]])
    np.testing.assert_allclose(found.gradient, [0.0, 0.0, 12.0])
    np.testing.assert_allclose(found.value, [0.0, 0.0, 36.0])
    assert found.rounds == 5
    np.testing.assert_array_equal(start.theta, 0.0)
    counts.clear()
    refine(restrict, hessian, Minimum(np.zeros((2, 2)), np.zeros(2), np.zeros(2), np.zeros((2, 2, 2)), 0))
    assert counts == [2, 1]


def test_a_last_step_too_short_to_count_is_the_last() -> None:
    """A cubic bend: steps square from 1e-3 to 1e-6 to 1e-12, and the one below 1e-8 ends it."""
    counts: list[int] = []

    def restrict(_: Index) -> Evaluate:
        return lambda x: ((x**2 / 2 + x**3 / 6).sum(axis=1), x + x**2 / 2)

    def hessian(index: Index, x: Array) -> Array:
        counts.append(len(index))
        return (1.0 + x)[:, :, None]

    found = refine(restrict, hessian, Minimum(np.full((1, 1), 1e-3), np.zeros(1), np.zeros(1), np.zeros((1, 1, 1)), 0))
    assert counts == [1, 1, 1]
    assert abs(found.theta[0, 0]) < 1e-18
