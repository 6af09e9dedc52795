"""The scatter of valleys' minima around their power law: Student's interval, neither lucky nor fearful."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from analysis.approaches import power_laws
from analysis.approaches.parabola import parabola
from analysis.inference import resampling, scatter
from analysis.inference.scatter import Scatter
from analysis.inputs.dataset import Array
from tests.analysis import studies

X = np.log(np.geomspace(1e18, 1e21, 6))
SLOPE = 0.5


def minima(seed: int, noise: Array, between: float) -> tuple[Array, Array]:
    """Return minima (m, 3) around a power law and draws (R, m, 3) of their noise, of these deviations (m,)."""
    generator = np.random.default_rng([seed, 11])
    y = SLOPE * X + np.sqrt(noise**2 + between**2) * generator.normal(size=len(X))
    best = np.stack((y, X - y, np.zeros_like(X)), axis=1)
    drawn = best + (noise * generator.normal(size=(400, len(X))))[..., None] * np.array([1.0, -1.0, 0.0])
    return best, drawn


def interval(seed: int, noise: Array, between: float) -> tuple[float, float]:
    """Return the interval of the exponent of N*."""
    best, drawn = minima(seed, noise, between)
    wide = scatter.allowed(scatter.scatters(X, best, drawn), best, drawn, np.random.default_rng(seed))
    slopes = power_laws.lines(np.exp(X), float(np.exp(X.mean())), wide[..., 0])[1]
    return resampling.interval(slopes, float(np.polyfit(X, best[:, 0], 1)[0])) or (np.nan, np.nan)


@pytest.mark.parametrize(
    ("noise", "between"), [(np.full(6, 0.1), 0.0), (np.geomspace(0.05, 0.2, 6), 0.0), (np.full(6, 0.1), 0.5)]
)
def test_exponents_are_held_with_and_without_scatter_between_budgets(noise: Array, between: float) -> None:
    ends = [interval(seed, noise, between) for seed in range(120)]
    held = np.mean([low <= SLOPE <= high for low, high in ends])
    assert 0.90 <= held <= 0.99  # the larger of noise and scatter in every draw: 1.00 where there is no scatter


def test_the_interval_is_students() -> None:
    best, drawn = minima(3, np.full(6, 1e-6), 0.3)
    (found, _) = scatter.scatters(X, best, drawn)
    assert found.df == pytest.approx(4.0, rel=1e-3)
    many = np.repeat(drawn, 40, axis=0)
    wide = scatter.allowed((found, found), best, many, np.random.default_rng(0))
    law = power_laws.power_law(1.0, X, best[:, 0], wide[..., 0])
    low, high = law.exponent_interval or (np.nan, np.nan)
    assert law.bse is not None
    assert (high - low) / 2 == pytest.approx(t.ppf(0.975, 4) * law.bse, rel=0.05)


def test_noise_of_unequal_budgets_leaves_fewer_degrees_of_freedom() -> None:
    y = SLOPE * X
    even, uneven = (Scatter(X, y, noise) for noise in (np.ones(6), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 50.0])))
    assert even.df == pytest.approx(4.0)
    assert uneven.df < 2.0
    assert even.square == pytest.approx(0.0, abs=1e-12)
    assert even.share > 0.05  # minima on a line by luck
    assert not even.rare


def test_errors_are_shares_of_the_loss_at_every_budget() -> None:
    law = (0.2, 90.0, 90.0, 0.32, 0.32)  # the loss falls to a third from the first budget to the last
    spreads = []
    for seed in range(20):
        table = studies.isoflop(seed, noise=0.003, law=law, budgets=tuple(np.geomspace(1e12, 1e17, 6)))
        rows = studies.as_rows(table)
        parabolas = [parabola(rows, rows.budget == g) for g in range(6)]
        spreads.append([p.relative.std() for p in parabolas])
        assert parabolas[0].loss.mean() > 2.0 * parabolas[-1].loss.mean()
    share = np.mean(spreads, axis=0)
    assert share.max() / share.min() < 1.8
    assert resampling.redrawn(np.array([-1.0, 1.0]), 1, 50, 0).std() == pytest.approx(np.sqrt(2.0), rel=0.2)
