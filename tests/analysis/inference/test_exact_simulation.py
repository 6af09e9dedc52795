"""Simulated studies: errors by hand, intervals by the normal law, and shares counted one by one."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.estimation import fit_problem, multistart, objectives, observations
from analysis.inference import budget_drift, covariance, error_draws, fit_law, resampling
from analysis.inference import coverage as simulation
from analysis.inference.coverage import Errors, coverage
from analysis.inputs.dataset import Rows
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies

LAW = dict(zip(("E", "A", "B", "alpha", "beta"), studies.LAW, strict=True))
SIZE = np.repeat(np.arange(5), 4)


def test_errors_by_hand() -> None:
    def parts() -> tuple[Any, Any]:
        one, two = np.random.default_rng(3), np.random.default_rng(3)
        one.normal(size=20)
        two.normal(size=20)
        return one.standard_t(5.0, size=20), two

    tails, _ = parts()
    drawn = Errors(0.01, 0.0, df=5.0).drawn(SIZE, np.random.default_rng(3))
    np.testing.assert_allclose(drawn, 0.01 * tails / np.sqrt(5 / 3), rtol=1e-12)
    normal = Errors(0.01, 0.0, df=None).drawn(SIZE, np.random.default_rng(3))
    np.testing.assert_allclose(normal, 0.01 * np.random.default_rng(3).normal(size=20), rtol=1e-12)
    shared = Errors(0.0, 0.02, df=None).drawn(SIZE, np.random.default_rng(3)).reshape(5, 4)
    generator = np.random.default_rng(3)
    generator.normal(size=20)
    np.testing.assert_allclose(shared, 0.02 * generator.normal(size=5)[:, None] * np.ones(4), rtol=1e-12)
    assert Errors() == Errors(0.0048, 0.004, 3.0)


def test_shares_are_counted() -> None:
    ends = np.array([[0.0, 1.0], [0.4, 2.0], [0.5, 3.0], [0.6, 1.0], [0.7, 0.9], [0.1, 0.5], [0.1, 0.4], [-1.0, 4.0]])
    assert simulation._shares(ends, 0.5) == pytest.approx(
        {"coverage": 5 / 8, "below": 1 / 8, "above": 2 / 8, "width": np.mean([1, 1.6, 2.5, 0.4, 0.2, 0.4, 0.3, 5]),
         "studies": 8.0}
    )  # fmt: skip


def problem(seed: int = 0) -> tuple[fit_problem.Problem, multistart.PointFit, Rows]:
    table = studies.isoflop(seed, noise=0.003)
    data = observations.read(table, SURFACE)
    p = fit_problem.problem(SURFACE, list(observations.inputs(data, SURFACE)), data.loss, objectives.Squared())
    return p, multistart.fit_point(p), data


@pytest.mark.parametrize("method", ["delta", "sandwich"])
def test_an_interval_by_the_normal_law(method: str) -> None:
    """Of ln A, of which the slope by the constants is known: 0 but by theta itself and the centre of ln N."""
    p, point, data = problem()
    data = replace(data, size=np.repeat(np.arange(5), 4))
    spread = covariance.delta(p, point) if method == "delta" else covariance.sandwich(p, point, data.size)
    beta = float(point.constants[4])
    df = 15 if method == "delta" else 4
    for confidence in (0.95, 0.5):
        low, high = simulation._interval(
            p, point, data, method=method, quantity="beta", resamples=3, confidence=confidence, seed=0
        )
        reach = stats.t.ppf(0.5 + confidence / 2, df) * np.sqrt(spread[4, 4])
        assert (low, high) == pytest.approx((beta - reach, beta + reach), rel=1e-6)
    low, high = simulation._interval(p, point, data, method=method, quantity="a", resamples=3, confidence=0.9, seed=0)
    alpha, beta = point.constants[3:]
    slope = np.array([0, 0, 0, -beta, alpha]) / (alpha + beta) ** 2
    reach = stats.t.ppf(0.95, df) * np.sqrt(slope @ spread @ slope)
    assert (low, high) == pytest.approx((beta / (alpha + beta) - reach, beta / (alpha + beta) + reach), rel=1e-5)


@pytest.mark.parametrize(("method", "by"), [("default", "auto"), ("rows", "rows")])
def test_an_interval_by_resamples(method: str, by: str) -> None:
    p, point, data = problem()
    found = simulation._interval(p, point, data, method=method, quantity="alpha", resamples=30, confidence=0.8, seed=7)
    how = resampling.choose(data.size, data.run_numbers, by)
    if by == "auto":
        how = budget_drift.allowing(how, error_draws.Around(p, point, observations.order(data, SURFACE)), data)
        assert how.drift, "as fit_law would choose"
    draws = SURFACE.natural(fit_law.resampled(p, point, data, how, resamples=30, seed=7), p.centres)[:, 3]
    assert found == resampling.interval(draws, float(point.constants[3]), 0.8)
    none = simulation._interval(p, point, data, method=method, quantity="alpha", resamples=1, confidence=0.8, seed=7)
    assert none == (-np.inf, np.inf), "one draw has no interval"


def test_coverage_of_studies_without_errors_and_with_known_ones() -> None:
    design = studies.isoflop(0)[["params", "tokens"]]
    exact = coverage(design, LAW, methods=("delta",), errors=Errors(1e-9, 0.0, None), studies=2, quantity="alpha")
    assert exact["delta"]["studies"] == 2.0
    assert exact["delta"]["width"] < 1e-4
    noisy = coverage(design, LAW, methods=("delta",), studies=2, loss=objectives.Squared(), seed=1)
    p = fit_problem.problem(
        SURFACE, (design["params"].to_numpy(), design["tokens"].to_numpy()), np.ones(20), objectives.Squared()
    )
    truth = np.log(studies.loss(studies.LAW, design["params"], design["tokens"]).to_numpy())
    data = observations.read({"params": design["params"], "tokens": design["tokens"], "loss": np.ones(20)}, SURFACE)
    widths = []
    for number in range(2):
        generator = np.random.default_rng(np.random.SeedSequence([1, 5, number]))
        study = fit_problem.Problem(SURFACE, p.x, p.centres, truth + Errors().drawn(data.size, generator), p.loss)
        low, high = simulation._interval(
            study,
            multistart.fit_point(study),
            data,
            method="delta",
            quantity="a",
            resamples=250,
            confidence=0.95,
            seed=0,
        )
        widths.append(high - low)
    assert noisy["delta"]["width"] == pytest.approx(np.mean(widths), rel=1e-6)
    assert coverage(design, LAW, methods=(), studies=0) == {}
    given = inspect.signature(coverage).parameters
    assert {name: given[name].default for name in ("studies", "resamples", "confidence", "seed", "loss", "errors")} == {
        "studies": 500, "resamples": 250, "confidence": 0.95, "seed": 0, "loss": None, "errors": None,
    }  # fmt: skip


def test_resampled_intervals_have_a_seed_a_study() -> None:
    design = studies.isoflop(0)[["params", "tokens"]]
    few = {"studies": 2, "resamples": 12, "errors": Errors(0.003, 0.0, None), "confidence": 0.8}
    first = coverage(design, LAW, methods=("default",), **few)  # type: ignore[arg-type]
    p, _, data = problem()
    truth = SURFACE.log_value(SURFACE.internal(np.array([studies.LAW]), p.centres), p.x)[0]
    widths = []
    for number in range(2):
        generator = np.random.default_rng(np.random.SeedSequence([0, 5, number]))
        study = fit_problem.Problem(
            SURFACE, p.x, p.centres, truth + Errors(0.003, 0.0, None).drawn(data.size, generator), objectives.Huber()
        )
        low, high = simulation._interval(
            study, multistart.fit_point(study), data, method="default", quantity="a", resamples=12, confidence=0.8,
            seed=number,
        )  # fmt: skip
        widths.append(high - low)
    assert first["default"]["width"] == pytest.approx(np.mean(widths), rel=1e-6)
    with pytest.raises(
        ValueError, match="quantity='c': chinchilla has no such constant; it has E, A, B, alpha, beta, a, b"
    ):
        coverage(design, LAW, quantity="c", studies=0)
