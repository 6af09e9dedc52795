"""Newton's steps: minima to all digits, no step uphill, and none along what is flat."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.estimation.newton import refine
from analysis.estimation.optimizer import Array, Index, Minimum

CENTRES = np.array([[1.0, -2.0], [0.5, 3.0], [0.0, 0.0]])


def found(theta: Array) -> Minimum:
    rows = len(theta)
    return Minimum(theta, np.zeros(rows), np.ones(rows), np.tile(np.eye(theta.shape[1]), (rows, 1, 1)), 0)


def settled(theta: Array, curvature: float = 2.0, fourth: float = 0.0) -> Minimum:
    """Minimise 0.5 curvature |x - c|^2 + fourth |x - c|^4 of three rows, each with a centre of its own."""

    def restrict(index: Index):  # type: ignore[no-untyped-def]
        def evaluate(x: Array) -> tuple[Array, Array]:
            away = x - CENTRES[index]
            square = (away**2).sum(axis=1)
            gradient = curvature * away + 4 * fourth * square[:, None] * away
            return 0.5 * curvature * square + fourth * square**2, gradient

        return evaluate

    def hessian(index: Index, x: Array) -> Array:
        away = x - CENTRES[index]
        square = (away**2).sum(axis=1)[:, None, None]
        outer = away[:, :, None] * away[:, None, :]
        return np.asarray((curvature + 4 * fourth * square) * np.eye(2) + 8 * fourth * outer)

    return refine(restrict, hessian, found(theta))


@pytest.mark.parametrize("fourth", [0.0, 0.5])
def test_minima_are_found_to_all_digits(fourth: float) -> None:
    start = CENTRES + np.array([[0.3, -0.4], [1.0, 0.5], [0.0, 0.0]])
    ended = settled(start, fourth=fourth)
    np.testing.assert_allclose(ended.theta, CENTRES, atol=1e-14)
    np.testing.assert_allclose(ended.value, 0.0, atol=1e-25)
    assert (ended.gradient < 1e-13).all()


def test_far_minima_are_reached_in_steps_of_limited_length() -> None:
    np.testing.assert_allclose(settled(CENTRES + 11.0).theta, CENTRES, atol=1e-12)
    np.testing.assert_allclose(settled(CENTRES + 40.0).theta, CENTRES + 16.0, atol=1e-9), "twelve steps of at most two"


def test_a_row_that_cannot_be_evaluated_stays() -> None:
    def restrict(index: Index):  # type: ignore[no-untyped-def]
        def evaluate(x: Array) -> tuple[Array, Array]:
            value = 0.5 * (x**2).sum(axis=1)
            value[index == 1] = np.nan
            return value, x

        return evaluate

    ended = refine(restrict, lambda index, x: np.tile(np.eye(2), (len(index), 1, 1)), found(np.ones((3, 2))))
    np.testing.assert_array_equal(ended.theta, [[0, 0], [1, 1], [0, 0]])


def test_nothing_moves_uphill_from_a_maximum_or_along_what_is_flat() -> None:
    def restrict(index: Index):  # type: ignore[no-untyped-def]
        del index
        return lambda x: (np.cos(x[:, 0]) + 0 * x[:, 1], np.stack([-np.sin(x[:, 0]), 0 * x[:, 1]], axis=1))

    def hessian(index: Index, x: Array) -> Array:
        del index
        made = np.zeros((len(x), 2, 2))
        made[:, 0, 0] = -np.cos(x[:, 0])
        return made

    ended = refine(restrict, hessian, found(np.array([[0.5, 7.0], [3.0, -1.0], [2.0, 0.0]])))
    np.testing.assert_allclose(ended.theta, [[np.pi, 7.0], [np.pi, -1.0], [np.pi, 0.0]], atol=1e-9)
