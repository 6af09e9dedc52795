"""The batched engine: known answers, published anchors, and what must not change the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference import resampling
from analysis.inference.fit_law import fit_law
from analysis.laws import sum_of_powers
from tests.analysis import studies

laws = st.tuples(
    st.floats(0.5, 3.0), st.floats(20.0, 1000.0), st.floats(20.0, 3000.0), st.floats(0.2, 0.6), st.floats(0.2, 0.6)
)


def point(frame: Any, loss: objectives.Loss) -> multistart.PointFit:
    return studies.surface_point(frame, loss)


@settings(max_examples=12, deadline=None)
@given(laws, st.booleans())
def test_noise_free_constants_are_recovered(law: tuple[float, ...], huber: bool) -> None:
    frame = studies.isoflop(law=law, budgets=(1e12, 1e13, 1e14, 1e15, 1e16))
    found = point(frame, objectives.Huber() if huber else objectives.Squared())
    np.testing.assert_allclose(found.constants, law, rtol=1e-6)
    assert found.evidence.converged


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(20)), st.floats(1e-9, 1e3), st.floats(1e-9, 1e3), st.floats(0.1, 10.0))
def test_neither_order_nor_units_change_the_law(order: list[int], n: float, d: float, unit: float) -> None:
    frame = studies.isoflop(3, noise=0.01)
    base = point(frame, objectives.Squared())
    changed = frame.iloc[order].reset_index(drop=True)
    scaled = changed.assign(params=changed.params * n, tokens=changed.tokens * d, loss=changed.loss * unit)
    found = point(scaled, objectives.Squared())
    E, A, B, alpha, beta = base.constants
    expected = [E * unit, A * unit * n**alpha, B * unit * d**beta, alpha, beta]
    np.testing.assert_allclose(found.constants, expected, rtol=2e-4)
    assert found.objective == pytest.approx(base.objective, rel=1e-9)


def test_chinchilla_minimum_and_constants() -> None:
    found = point(studies.chinchilla(), objectives.Huber(1e-3))
    assert found.objective <= 0.0010182740179
    np.testing.assert_allclose(found.constants[:3], [1.817218, 477.826, 2143.417], rtol=1e-4)
    np.testing.assert_allclose(found.constants[3:], [0.347310, 0.367172], atol=1e-5)
    assert float(studies.exponent(found.constants)) == pytest.approx(0.513893, abs=1e-5)
    assert found.evidence.agree_share >= 0.95
    assert found.evidence.converged


def test_chinchilla_least_squares() -> None:
    found = point(studies.chinchilla(), objectives.Squared())
    np.testing.assert_allclose(found.constants, [1.86455, 593.3, 4875.6, 0.36025, 0.40588], rtol=1e-3)


@pytest.mark.parametrize(("k", "a"), [(0, 0.5646), (1, 0.5441), (5, 0.5139), (10, 0.5086), (20, 0.4838)])
def test_chinchilla_without_its_highest_losses(k: int, a: float) -> None:
    frame = pd.read_csv(studies.public("chinchilla_epoch/runs.csv")).sort_values("loss", ascending=False)
    found = point(frame.iloc[k:], objectives.Huber())
    assert float(studies.exponent(found.constants)) == pytest.approx(a, abs=1e-3)


def test_chinchilla_bootstrap_errors_by_rows_and_by_sizes() -> None:
    rows = studies.as_rows(studies.chinchilla())
    assert resampling.plan(rows).text == "percentile bootstrap over the 42 model sizes"
    problem = fit_problem.problem(sum_of_powers.SURFACE, (rows.params, rows.tokens), rows.loss, objectives.Huber())
    best = multistart.fit_point(problem)
    for groups, errors in ((np.arange(240), (0.0154, 0.0206, 0.0200)), (rows.size, (0.0182, 0.0181, 0.0206))):
        weights = resampling.cluster_weights(groups, 4000, 0)
        found = multistart.fit_many(problem, best, weights=weights)
        drawn = sum_of_powers.SURFACE.natural(found.theta, problem.centres)
        spread = (drawn[:, 3].std(), drawn[:, 4].std(), studies.exponent(drawn).std())
        np.testing.assert_allclose(spread, errors, rtol=0.1)


def test_no_resample_is_worse_than_many_starts_find() -> None:
    rows = studies.as_rows(studies.chinchilla())
    problem = fit_problem.problem(sum_of_powers.SURFACE, (rows.params, rows.tokens), rows.loss, objectives.Huber())
    best = multistart.fit_point(problem)
    weights = resampling.cluster_weights(rows.size, 40, 1)
    found = multistart.fit_many(problem, best, weights=weights)
    starts = multistart.starts_of(problem, 6)
    for row in range(len(weights)):
        others = multistart.solve(problem, starts, weights=np.repeat(weights[row : row + 1], len(starts), axis=0))
        assert found.value[row] <= others.value.min() + 1e-12


def test_many_rows_are_fitted_all_though_few_choose_the_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    params, tokens = np.exp(rng.uniform(16, 23, 12_000)), np.exp(rng.uniform(20, 27, 12_000))
    loss = 1.8 + 480 * params**-0.35 + 2100 * tokens**-0.37
    loss[::2] *= 1.01  # half of the rows lie above: the least squares of all of them lie in the middle
    problem = fit_problem.problem(sum_of_powers.SURFACE, (params, tokens), loss, objectives.Squared())
    found = multistart.fit_point(problem)
    assert found.evidence.agree_share == 1.0
    monkeypatch.setattr(multistart, "START_ROWS", len(loss))
    assert found.objective == pytest.approx(multistart.fit_point(problem).objective, rel=1e-9)


def test_resamples_solved_in_smaller_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = studies.as_rows(studies.isoflop(1, noise=0.005))
    problem = fit_problem.problem(sum_of_powers.SURFACE, (rows.params, rows.tokens), rows.loss, objectives.Huber())
    best, weights = multistart.fit_point(problem), resampling.cluster_weights(np.arange(len(rows)), 50, 1)
    whole = multistart.fit_many(problem, best, weights=weights)
    monkeypatch.setattr(multistart, "CELLS", 7 * len(rows))
    monkeypatch.setattr(multistart, "CACHED", 7 * len(rows))
    np.testing.assert_allclose(multistart.fit_many(problem, best, weights=weights).value, whole.value, rtol=1e-6)


def test_workers_do_not_change_a_bit() -> None:
    rows = studies.isoflop(1, noise=0.005)
    found = [fit_law(rows, resamples=600, seed=5, workers=w) for w in (1, 3)]
    np.testing.assert_array_equal(found[0].thetas, found[1].thetas)
    assert not np.array_equal(found[0].thetas, fit_law(rows, resamples=600, seed=6).thetas)
