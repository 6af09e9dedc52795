"""Covariances against the textbook's formulas, with any residuals: the fit itself plays no part in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.estimation import fit_problem, multistart, objectives
from analysis.estimation.constraints import constraint
from analysis.inference import covariance
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies

TABLE = studies.isoflop(0)
GROUPS = np.repeat([7, 3, 9, 1, 5], 4)


def problem(
    loss: objectives.Loss, residual: np.ndarray, plain: bool = False
) -> tuple[fit_problem.Problem, multistart.PointFit]:
    """Return a problem with these residuals (observed less predicted) at the true law, as if that were the fit."""
    columns = (TABLE["params"].to_numpy()[: len(residual)], TABLE["tokens"].to_numpy()[: len(residual)])
    p = fit_problem.problem(SURFACE, columns, np.ones(len(residual)), loss, plain=plain)
    theta = SURFACE.internal(np.array([studies.LAW]), p.centres)
    said = SURFACE.log_value(theta, p.x)[0]
    y = np.log(np.exp(said) + residual) if plain else said + residual
    p = fit_problem.Problem(SURFACE, p.x, p.centres, y, loss, p.constraint, plain)
    evidence: Any = None
    return p, multistart.PointFit(theta[0], np.array(studies.LAW), 0.0, np.eye(5), evidence)


def normal(count: int = 20, sd: float = 0.01) -> np.ndarray:
    return sd * np.random.default_rng(0).normal(size=count)


@pytest.mark.parametrize("plain", [False, True])
def test_of_squares_it_is_the_textbooks(plain: bool) -> None:
    p, point = problem(objectives.Squared(), normal(), plain)
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    if plain:
        slopes = slopes * np.exp(SURFACE.log_value(point.theta[None], p.x)[0])[:, None]
    bread = np.linalg.inv(slopes.T @ slopes)
    want = bread * (normal() ** 2).sum() / 15
    # 1e-6: the slope of psi is a difference quotient.
    np.testing.assert_allclose(covariance.delta(p, point), want, rtol=1e-6)
    meat = _meat(slopes)
    np.testing.assert_allclose(covariance.sandwich(p, point, GROUPS), bread @ meat @ bread * 5 / 4 * 19 / 15, rtol=1e-6)


def _meat(slopes: np.ndarray) -> np.ndarray:
    """Return the sum over groups of the outer products of their scores."""
    scores = [(slopes[group == GROUPS] * normal()[group == GROUPS, None]).sum(axis=0) for group in np.unique(GROUPS)]
    return np.asarray(np.sum([np.outer(score, score) for score in scores], axis=0))


def steepness(psi: Any, residual: np.ndarray, spread: float) -> float:
    """Return the mean slope of psi over a normal bandwidth (Silverman's 1.06 sd n^-1/5)."""
    width = 1.06 * spread * len(residual) ** -0.2
    return float((psi(residual + width) - psi(residual - width)).mean() / (2 * width))


def test_of_hubers_loss_the_slope_is_measured_over_a_bandwidth() -> None:
    residual, cut = normal(), 0.004
    p, point = problem(objectives.Huber(cut), residual)
    spread = 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
    slope = steepness(lambda r: np.clip(r, -cut, cut), residual, spread)
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    bread = np.linalg.inv(slopes.T @ slopes)
    want = bread * (np.clip(residual, -cut, cut) ** 2).sum() / 15 / slope**2
    np.testing.assert_allclose(covariance.delta(p, point), want, rtol=1e-9)
    scores = slopes * np.clip(residual, -cut, cut)[:, None]
    each = bread @ (scores.T @ scores) @ bread / slope**2 * 20 / 19 * 19 / 15
    np.testing.assert_allclose(covariance.sandwich(p, point, np.arange(20)), each, rtol=1e-9)


def test_of_students_t_the_scale_stays_that_of_the_residuals() -> None:
    residual, loss = normal(), objectives.StudentT()
    p, point = problem(loss, residual)
    spread = 1.4826 * float(np.median(np.abs(residual - np.median(residual))))
    slope = steepness(lambda r: loss.pull(r[None], residual[None])[0], residual, spread)
    psi = loss.summed(residual[None], None)[1][0]
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    want = np.linalg.inv(slopes.T @ slopes) * (psi**2).sum() / 15 / slope**2
    np.testing.assert_allclose(covariance.delta(p, point), want, rtol=1e-9)


def test_where_most_residuals_are_equal_their_standard_deviation_gives_the_bandwidth() -> None:
    residual, cut = np.zeros(20), 0.004
    residual[3], residual[8] = 0.02, -0.01
    p, point = problem(objectives.Huber(cut), residual)
    slope = steepness(lambda r: np.clip(r, -cut, cut), residual, float(residual.std()))
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    want = np.linalg.inv(slopes.T @ slopes) * 2 * cut**2 / 15 / slope**2
    np.testing.assert_allclose(covariance.delta(p, point), want, rtol=1e-9)


def test_exact_fits_and_residuals_without_a_slope_have_numbers_still() -> None:
    p, point = problem(objectives.Squared(), np.zeros(20))
    assert np.abs(covariance.delta(p, point)).max() < 1e-12
    p, point = problem(objectives.Huber(1e-9), 1.0 + 0.001 * np.arange(20))
    for found in (covariance.delta(p, point), covariance.sandwich(p, point, GROUPS)):
        assert np.isfinite(found).all()
        assert np.diag(found).min() > 1e100, "nothing is known"


def test_as_many_rows_as_constants_and_a_single_group_divide_by_one() -> None:
    p, point = problem(objectives.Squared(), normal(5))
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    want = np.linalg.inv(slopes.T @ slopes) * (normal(5) ** 2).sum()
    np.testing.assert_allclose(covariance.delta(p, point), want, rtol=1e-4)
    p, point = problem(objectives.Squared(), normal())
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    bread = np.linalg.inv(slopes.T @ slopes)
    score = (slopes * normal()[:, None]).sum(axis=0)
    one = covariance.sandwich(p, point, np.zeros(20, dtype=np.int64))
    np.testing.assert_allclose(one, bread @ np.outer(score, score) @ bread * 19 / 15, rtol=1e-6, atol=1e-12)
    p, point = problem(objectives.Squared(), normal(5))
    few = covariance.sandwich(p, point, np.arange(5))
    slopes = SURFACE.jacobian(point.theta[None], p.x)[0]
    bread, scores = np.linalg.inv(slopes.T @ slopes), slopes * normal(5)[:, None]
    want = bread @ (scores.T @ scores) @ bread * 5 / 4 * 4
    np.testing.assert_allclose(few, want, rtol=1e-3)


def test_what_is_held_has_no_variance_and_what_is_tied_has_the_same() -> None:
    p, point = problem(objectives.Squared(), normal())
    free = constraint(SURFACE, p.centres, fix={"E": 1.9}, tie={"beta": "alpha"})
    held = fit_problem.Problem(SURFACE, p.x, p.centres, p.y, p.loss, free)
    for found in (covariance.delta(held, point), covariance.sandwich(held, point, GROUPS)):
        assert np.abs(found[0]).max() == 0.0
        assert found[3, 3] == pytest.approx(found[4, 4])
        assert found[3, 3] > 0
    inner = free.pull(SURFACE.jacobian(point.theta[None], p.x)[0])
    want = np.linalg.inv(inner.T @ inner) * (normal() ** 2).sum() / 17
    found = covariance.delta(held, point)[np.ix_(free.free, free.free)]
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_an_inverse_knows_scales_and_singular_directions() -> None:
    scales = np.array([1e-10, 1.0, 1e9])
    matrix = (np.eye(3) + 0.3) * scales[:, None] * scales
    np.testing.assert_allclose(
        covariance._inverse(matrix) * scales[:, None] * scales, np.linalg.inv(np.eye(3) + 0.3), rtol=1e-9
    )
    twice = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 4.0]])
    np.testing.assert_allclose(covariance._inverse(twice), np.linalg.pinv(twice), atol=1e-12)
    none = covariance._inverse(np.diag([4.0, 0.0]))
    assert none.tolist() == [[0.25, 0.0], [0.0, 0.0]]
