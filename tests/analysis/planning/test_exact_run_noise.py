"""How much runs scatter: against the integral written out, and what few runs and many say of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.planning import run_noise

X = np.linspace(-1.0, 1.0, 12)
CURVE = np.stack((np.ones(12), X, X**2), axis=1)


def drawn(scatter: float, seed: int, besides: np.ndarray) -> np.ndarray:
    """Return gaps with this covariance besides, and this scatter."""
    generator = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(besides)
    rest = vectors @ (np.sqrt(np.maximum(values, 0.0)) * generator.normal(size=len(values)))
    return np.asarray(rest + scatter * generator.normal(size=len(values)))


@pytest.mark.parametrize("scatter", [0.001, 0.004, 0.03])
def test_it_is_the_mean_over_what_the_runs_leave_possible(scatter: float) -> None:
    besides = 0.1**2 * CURVE @ CURVE.T + 0.005**2 * np.exp(-0.5 * (X[:, None] - X[None]) ** 2)
    gaps = drawn(scatter, 3, besides)
    levels = np.geomspace(5e-4, 0.064, 300)
    weights = [
        np.exp(stats.multivariate_normal.logpdf(gaps, cov=besides + s**2 * np.eye(12)) - 40)
        * np.exp(-0.5 * (np.log(s / 0.002) / np.log(4.0)) ** 2)
        for s in levels
    ]
    whole = np.sqrt(np.average(levels**2, weights=weights))
    assert run_noise.scatter(besides, gaps) == pytest.approx(whole, rel=0.02)


def test_constants_take_up_no_scatter() -> None:
    """Twelve gaps less three constants: the residuals' mean square is nine twelfths of the scatter's."""
    besides = 100.0 * CURVE @ CURVE.T
    every = [drawn(0.01, seed, besides) for seed in range(60)]
    found = [run_noise.scatter(besides, gaps) for gaps in every]
    residuals = [gaps - CURVE @ np.linalg.lstsq(CURVE, gaps, rcond=None)[0] for gaps in every]
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.01, rel=0.1)
    assert np.sqrt(np.mean(np.square(residuals))) < 0.009


def test_runs_that_tell_nothing_leave_the_prior() -> None:
    """0.2 % within a factor of four, between the ends of what is weighed."""
    levels = np.geomspace(5e-4, 0.064, 61)
    weights = stats.norm.pdf(np.log(levels), np.log(0.002), np.log(4.0))
    left = np.sqrt(np.average(levels**2, weights=weights))
    assert run_noise.scatter(1e4 * np.eye(2), np.zeros(2)) == pytest.approx(left, rel=1e-3)
    assert left == pytest.approx(0.0095, rel=0.1)


def test_runs_that_agree_exactly_scatter_least() -> None:
    assert run_noise.scatter(np.zeros((40, 40)), np.zeros(40)) == pytest.approx(run_noise.LEAST, rel=0.01)
    assert run_noise.scatter(np.zeros((40, 40)), np.full(40, 9.0)) == pytest.approx(run_noise.MOST, rel=0.01)


def test_rounding_below_zero_is_no_variance() -> None:
    """A covariance of rank one, whose other eigenvalues come out as small negative numbers."""
    one = 1e5 * np.ones((30, 30))
    assert np.isfinite(run_noise.scatter(one, drawn(0.005, 1, np.zeros((30, 30)))))
    assert run_noise.scatter(one, drawn(0.005, 1, np.zeros((30, 30)))) == pytest.approx(0.005, rel=0.3)


def test_of_many_runs_five_hundred_are_looked_at() -> None:
    generator = np.random.default_rng(2)
    gaps = 0.005 * generator.normal(size=1100)
    every = run_noise.scatter(np.zeros((1100, 1100)), gaps)
    assert every == run_noise.scatter(np.zeros((367, 367)), gaps[::3])
    assert every == pytest.approx(0.005, rel=0.1)
    whole = run_noise.scatter(np.zeros((500, 500)), gaps[:500])
    assert whole != run_noise.scatter(np.zeros((250, 250)), gaps[:500:2])
