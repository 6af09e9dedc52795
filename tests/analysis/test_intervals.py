"""Intervals hold: errors drawn with the right sign and centre."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis import bootstrap, engine, fit_law, losses
from tests.analysis import studies

MIDDLE = {"params": [1e6], "tokens": [1e7]}


def spoilt(seed: int, *, few: int = 3) -> Any:
    """Return 25 runs with errors of 0.3 %, a few of which went badly: 3 to 8 % too high."""
    table = studies.isoflop(seed, noise=0.003, budgets=(*studies.BUDGETS, 4e13))
    generator = np.random.default_rng([seed, 7])
    rows = generator.choice(len(table), few, replace=False)
    table.loc[rows, "loss"] *= np.exp(generator.uniform(0.03, 0.08, few))
    return table


@pytest.mark.parametrize("loss", [losses.Huber(1e-3), losses.Squared(), losses.Absolute(), losses.StudentT()])
def test_residuals_are_centred_where_their_pulls_sum_to_zero(loss: losses.Loss) -> None:
    residual = np.concatenate((0.003 * np.random.default_rng(0).normal(size=22), [0.03, 0.05, 0.08]))
    middle = losses.location(loss, residual)
    pulls = loss.summed((residual - middle)[None], None)[1]
    assert abs(pulls.sum()) < 1e-6 * np.abs(pulls).sum()
    squared = isinstance(loss, losses.Squared)
    assert (abs(middle - residual.mean()) < 1e-12) == squared
    assert squared or middle < 0.002


def test_residuals_are_observed_less_fitted_and_drawn_with_that_sign() -> None:
    fit = fit_law(spoilt(0), resamples=0)
    residual = engine.residuals(fit.problem, fit.point.theta[None])[0]
    np.testing.assert_allclose(residual, np.log(fit.data.target / fit.fittedvalues), atol=1e-12)
    noise = bootstrap.residual_draws(residual, fit.df_resid, 400, 0)
    assert ((residual - residual.mean()) ** 3).mean() > 0 < ((noise - noise.mean()) ** 3).mean()


def test_runs_that_went_badly_on_one_side_leave_the_interval_around_the_truth() -> None:
    truth = float(studies.loss(studies.LAW, 1e6, 1e7))
    held = 0
    for seed in range(12):
        line = fit_law(spoilt(seed), resamples=150, seed=seed).get_prediction(MIDDLE).summary_frame().iloc[0]
        assert line["mean_ci_lower"] <= line["mean"] <= line["mean_ci_upper"]
        held += line["mean_ci_lower"] <= truth <= line["mean_ci_upper"]
    assert held >= 10  # mirrored or mean-centred errors hold the truth in none to two of them
