"""Covariances beside the textbook's, with sums written out; for losses without a slope, and of few groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis import covariance, engine
from analysis.bfgs import Array
from analysis.constraints import Constraint
from analysis.engine import PointFit, Problem
from analysis.forms import FORMS
from analysis.losses import Huber, Loss, Squared, StudentT
from analysis.results import Optimizer

X = np.array([-2.0, -1.0, 0.0, 0.5, 1.5, 1.0])
ROWS = np.column_stack((np.ones(6), X))
THETA = np.array([0.3, -0.2])
NOISE = np.array([0.1, -0.05, 0.02, -0.2, 0.07, 0.011])
POWER: Any = FORMS["batch"]


def problem(loss: Loss, plain: bool = False, noise: Array = NOISE, constraint: Constraint | None = None) -> Problem:
    y = ROWS @ THETA + noise
    if plain:
        y = np.log(np.exp(ROWS @ THETA) + noise)
    return Problem(POWER, X[None], np.zeros(1), y, loss, constraint or Constraint(), plain)


def point(theta: Array = THETA) -> PointFit:
    return PointFit(theta, theta, 1.0, np.eye(2), Optimizer("", 1, 1.0, 0.0, True, ()))


def bandwidth(r: Array) -> float:
    return float(1.06 * 1.4826 * np.median(np.abs(r - np.median(r))) * len(r) ** -0.2)


def test_least_squares() -> None:
    found = covariance.delta(problem(Squared()), point())
    np.testing.assert_allclose(found, np.linalg.inv(ROWS.T @ ROWS) * (NOISE**2).sum() / 4, rtol=1e-9)
    plain = covariance.delta(problem(Squared(), True), point())
    slopes = ROWS * np.exp(ROWS @ THETA)[:, None]
    np.testing.assert_allclose(plain, np.linalg.inv(slopes.T @ slopes) * (NOISE**2).sum() / 4, rtol=1e-9)


@pytest.mark.parametrize("loss", [Huber(0.04), StudentT()], ids=lambda loss: loss.text)
def test_other_losses_by_their_pulls_and_mean_slope(loss: Loss) -> None:
    width = bandwidth(NOISE)
    if isinstance(loss, Huber):
        psi = np.clip(NOISE, -0.04, 0.04)
        ends = [np.clip(NOISE + side * width, -0.04, 0.04) for side in (1, -1)]
    else:
        psi = loss.summed(NOISE[None], None)[1][0]
        ends = [loss.pull((NOISE + side * width)[None], NOISE[None])[0] for side in (1, -1)]  # type: ignore[attr-defined]
    steep = (ends[0] - ends[1]).mean() / (2 * width)
    found = covariance.delta(problem(loss), point())
    bread = np.linalg.inv(ROWS.T @ ROWS)
    np.testing.assert_allclose(found, bread * (psi**2).sum() / 4 / steep**2, rtol=1e-7)
    groups = np.array([5, 5, 9, 9, 9, 7])
    scores = np.array([(ROWS * psi[:, None])[groups == g].sum(axis=0) for g in (5, 7, 9)])
    expected = bread @ scores.T @ scores @ bread / steep**2 * (3 / 2) * (5 / 4)
    np.testing.assert_allclose(covariance.sandwich(problem(loss), point(), groups), expected, rtol=1e-7)


def test_one_group_and_as_many_constants_as_rows() -> None:
    found = covariance.sandwich(problem(Squared()), point(), np.zeros(6, dtype=np.int64))
    bread = np.linalg.inv(ROWS.T @ ROWS)
    score = (ROWS * NOISE[:, None]).sum(axis=0)
    np.testing.assert_allclose(found, bread @ np.outer(score, score) @ bread * 5 / 4, rtol=1e-7, atol=1e-12)
    for count in (1, 2, 3):
        p = replace(problem(Squared()), x=X[None, :count], y=(ROWS @ THETA + NOISE)[:count])
        square = float((NOISE[:count] ** 2).sum())
        expected = np.linalg.pinv(ROWS[:count].T @ ROWS[:count]) * square
        slopes, _psi, steep = covariance._pieces(p, point())
        assert steep == pytest.approx(1.0)
        np.testing.assert_array_equal(slopes, ROWS[:count])
        if count > 1:
            np.testing.assert_allclose(covariance.delta(p, point()), expected, rtol=1e-7)
            each = covariance.sandwich(p, point(), np.arange(count))
            bread = np.linalg.inv(ROWS[:count].T @ ROWS[:count])
            scores = ROWS[:count] * NOISE[:count, None]
            np.testing.assert_allclose(each, bread @ scores.T @ scores @ bread * count, rtol=1e-6)


def test_residuals_without_a_spread() -> None:
    """More than half are equal: their standard deviation gives the bandwidth; all equal: 1e-12 does."""
    noise = np.array([0.01, 0.01, 0.01, 0.01, 0.31, 0.01])
    loss = Huber(0.2)
    width = 1.06 * noise.std() * 6**-0.2
    ends = [np.clip(noise + side * width, -0.2, 0.2) for side in (1, -1)]
    steep = (ends[0] - ends[1]).mean() / (2 * width)
    _slopes, _, found = covariance._pieces(problem(loss, noise=noise), point())
    assert found == pytest.approx(steep, rel=1e-6)
    assert covariance._pieces(problem(loss, noise=np.zeros(6)), point())[2] == pytest.approx(1.0, rel=1e-3)
    # All residuals in the tails: no slope, and a covariance without bounds rather than an error.
    tails = np.array([1.0, -1.0, 1.001, -1.001, 0.999, -0.999])
    p = problem(Huber(1e-3), noise=tails + 5.0)
    assert covariance._pieces(p, point())[2] == 1e-300
    assert (np.diag(covariance.delta(p, point())) > 1e200).all()


def test_held_constants_have_no_variance() -> None:
    held = Constraint(np.array([[1.0], [2.0]]), np.array([0.0, -0.8]), (0,))
    for loss in (Squared(),):
        p = problem(loss, constraint=held)
        found = covariance.delta(p, point())
        row = ROWS @ np.array([1.0, 2.0])
        variance = (NOISE**2).sum() / 5 / (row @ row)
        np.testing.assert_allclose(found, variance * np.array([[1.0, 2.0], [2.0, 4.0]]), rtol=1e-9)
        groups = np.arange(6)
        expected = ((row * NOISE) ** 2).sum() / (row @ row) ** 2 * 6 / 5
        whole = covariance.sandwich(p, point(), groups)
        np.testing.assert_allclose(whole, expected * np.array([[1.0, 2.0], [2.0, 4.0]]), rtol=1e-9)


def test_constants_that_cannot_be_told_apart_share_what_is_known() -> None:
    matrix = np.array([[4.0, 2.0], [2.0, 1.0]])
    found = covariance._inverse(matrix)
    scaled = np.full((2, 2), 0.25)
    np.testing.assert_allclose(found, scaled / np.outer([2.0, 1.0], [2.0, 1.0]), rtol=1e-9)
    skewed = np.array([[1e-12, 3e-7], [3e-7, 1.0]])
    np.testing.assert_allclose(covariance._inverse(skewed) @ skewed, np.eye(2), atol=1e-6)
    near = np.array([[1.0, 1.0 - 1e-13], [1.0 - 1e-13, 1.0]])
    np.testing.assert_allclose(np.diag(covariance._inverse(near)), 5e12, rtol=1e-2)
    equal = np.array([[1.0, 1.0 - 2e-16], [1.0 - 2e-16, 1.0]])
    np.testing.assert_allclose(covariance._inverse(equal), 0.25, rtol=1e-3)
    np.testing.assert_allclose(covariance._inverse(np.diag([2.0, 0.0])), [[0.5, 0.0], [0.0, 0.0]])


def test_the_real_fit_has_a_covariance_in_step_with_its_hessian() -> None:
    """Least squares: s^2 times the inverse of J'J, which the engine's own first metric is."""
    p = problem(Squared())
    fit = engine.fit_point(p)
    found = covariance.delta(p, fit)
    np.testing.assert_allclose(found * 4 / (2 * fit.objective), np.linalg.inv(ROWS.T @ ROWS), rtol=1e-6)
