"""Of laws that nothing tells apart the one nearest to zero in its constants is taken, wherever a search ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from analysis.estimation import bounds, fit_problem, level_ground, multistart
from analysis.estimation.fit_problem import Problem
from analysis.estimation.objectives import Huber, Loss, Squared
from analysis.inference.fit_law import fit_law
from analysis.laws.registry import FORMS
from tests.analysis import anywhere, studies


def problem(loss: Loss, fix: Mapping[str, float] | None = None) -> Problem:
    rows = studies.as_rows(anywhere.at_two_tokens())
    return fit_problem.problem(FORMS["chinchilla"], [rows.params, rows.tokens], rows.loss, loss, fix=fix)


def with_exponent(p: Problem, beta: float) -> np.ndarray:
    """Return the law of least squares with this exponent of the tokens' term."""
    held = bounds.held(p, 4, beta)
    assert held is not None
    return multistart.fit_point(held).theta


@cache
def by_exponent(loss: Huber | Squared) -> tuple[np.ndarray, np.ndarray]:
    """Return the laws (12, 5) of exponents of the tokens' term from 0.05 on, and their objectives."""
    p = problem(loss)
    every = np.array([with_exponent(p, beta) for beta in np.arange(0.05, 0.17, 0.01)])
    return every, fit_problem.evaluate(p, every)[0]


@pytest.mark.parametrize("loss", [Huber(), Squared()])
@pytest.mark.parametrize("begun", [0.06, 0.086, 0.2, 0.4])
def test_it_is_the_nearest_to_zero_of_all_that_are_as_good(loss: Huber | Squared, begun: float) -> None:
    p = problem(loss)
    every, value = by_exponent(loss)
    assert np.ptp(value) <= 1e-9 * value.min()
    best = every[np.argmin(np.linalg.norm(every, axis=1))]
    start = with_exponent(p, begun)
    found = level_ground.nearest_to_zero(fit_problem.decided(p), start)
    assert fit_problem.evaluate(p, found[None])[0][0] <= value.min() * (1 + 1e-9)
    assert np.linalg.norm(found) <= np.linalg.norm(best)
    assert found[4] == pytest.approx(best[4], abs=0.01)
    assert found == pytest.approx(fit_law(anywhere.at_two_tokens(), loss="squared", resamples=0).point.theta, abs=1e-6)


def test_what_the_rows_tell_stays_to_the_last_digit() -> None:
    for table in (studies.isoflop(1, noise=0.004), studies.ladder(2, 24, 0.005, 0.02)):
        rows = studies.as_rows(table)
        p = fit_problem.problem(FORMS["chinchilla"], [rows.params, rows.tokens], rows.loss, Squared())
        theta = multistart.fit_point(p).theta
        assert (level_ground.nearest_to_zero(p, theta) == theta).all()


def test_laws_of_which_another_rule_tells_what_is_given_stay() -> None:
    one = studies.isoflop(1, noise=0.004).assign(tokens=1e9)
    rows = studies.as_rows(one)
    p = fit_problem.problem(FORMS["chinchilla"], [rows.params, rows.tokens], rows.loss, Squared())
    theta = np.array([0.3, 0.1, 0.2, 0.3, 0.25])
    assert (bounds.levelled(p, theta[None]) != theta).any()
    assert (level_ground.nearest_to_zero(p, theta) == theta).all()


def test_constants_that_are_held_stay_and_the_rest_is_told_by_the_rows() -> None:
    held = problem(Squared(), fix={"beta": 0.3})
    theta = multistart.fit_point(held).theta
    assert theta[4] == pytest.approx(0.3)
    assert (level_ground.nearest_to_zero(held, theta) == theta).all()
    every = problem(Squared(), fix={"E": 1.0, "A": 50.0, "B": 6.0, "alpha": 0.3, "beta": 0.1})
    law = every.expanded(np.zeros((1, 0)))[0]
    assert (level_ground.nearest_to_zero(every, law) == law).all()


def test_a_term_that_is_not_there_is_no_direction() -> None:
    p = problem(Squared())
    gone = np.array([0.1, 0.08, -40.0, 0.33, 0.1])
    assert level_ground._slope(p, gone)[[2, 4]].tolist() == [0.0, 0.0]
    assert level_ground._slope(p, np.array([-60.0, -60.0, -60.0, 0.3, 0.1])).shape == (5,)


def test_steps_that_lead_to_worse_laws_are_halved_or_not_taken() -> None:
    p = problem(Squared())
    z = with_exponent(p, 0.2)
    assert level_ground._moved(p, z, z) is None, "away from zero"
    nearer = level_ground._moved(p, z, -z)
    assert nearer is None or np.linalg.norm(nearer) < np.linalg.norm(z)
    slope = level_ground._slope(p, z)
    moved = level_ground._moved(p, z, -100.0 * slope)
    assert moved is not None
    assert 0.0 < np.linalg.norm(moved - z) <= 1.5 * level_ground.LONGEST
    steep = replace(p, loss=Huber())
    assert np.isfinite(level_ground._lowest(steep, z)).all()
