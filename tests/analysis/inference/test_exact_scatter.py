"""The scatter of minima by hand: mean squares, degrees of freedom, shares, draws, and every finding's words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from analysis.inference import scatter
from analysis.inference.scatter import Scatter
from analysis.inputs.dataset import Array

LINE = np.log([1e15, 1e16, 1e17, 1e18])
ZIGZAG = np.array([0.1, -0.1, 0.1, -0.1])
MIDDLES = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)


def test_a_mean_square_around_a_line() -> None:
    x, y = np.array([35.0, 37.0, 40.0, 41.0]), np.array([1.0, 2.5, 2.0, 4.0])
    rest = y - np.polyval(np.polyfit(x, y, 1), x)
    found = Scatter(x, y, np.zeros(4))
    assert found.square == pytest.approx((rest**2).sum() / 2)
    assert (found.expected, found.between) == (0.0, found.square)
    assert found.df == pytest.approx(2.0)
    assert found.share == pytest.approx(1.0)
    assert not found.rare, "draws without noise are no measure"


def test_what_noise_explains_is_what_a_line_leaves_of_it() -> None:
    noise = np.array([1.0, 4.0, 9.0, 16.0])
    found = Scatter(LINE, 5 + 0.5 * LINE + ZIGZAG, noise)
    design = np.stack((np.ones(4), LINE - LINE.mean()), axis=1)
    left = np.eye(4) - design @ np.linalg.inv(design.T @ design) @ design.T
    assert found.expected == pytest.approx(float((np.diag(left) * noise).sum()) / 2)
    assert found.between == 0.0
    values = np.linalg.eigvals(left * noise).real
    assert found.df == pytest.approx(values.sum() ** 2 / (values**2).sum())
    assert found.share == pytest.approx(stats.chi2.ppf(0.05, found.df) / found.df)
    far = Scatter(LINE, 5 + 0.5 * LINE + 100 * ZIGZAG, noise)
    assert far.between == pytest.approx(far.square - far.expected)
    both = np.linalg.eigvals(left * (noise + far.between)).real
    assert far.df == pytest.approx(both.sum() ** 2 / (both**2).sum())
    near = Scatter(LINE, 5 + 0.5 * LINE + 20 * ZIGZAG, noise)
    assert near.between == 0.0
    assert near.share == pytest.approx(near.square / near.expected)


@pytest.mark.parametrize("variances", [scatter.variances, scatter.middle_variances])
def test_variances_of_draws(variances: Callable[[Array], Array]) -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, 3)) * [0.1, 0.2, 0.3] + [5, 6, 7]
    assert variances(draws) == pytest.approx([0.01, 0.04, 0.09], rel=0.05)
    spoilt = draws.copy()
    spoilt[:100, 0] = np.nan
    assert variances(spoilt) == pytest.approx([0.01, 0.04, 0.09], rel=0.05)
    spoilt[:, 1] = np.nan
    assert (variances(spoilt) == 0).all()


def test_variances_have_the_draws_far_out_and_middle_variances_have_not() -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, 2))
    low, high = np.quantile(draws, [0.1587, 0.8413], axis=0)
    assert scatter.middle_variances(draws) == pytest.approx(((high - low) / 2) ** 2)
    draws[draws > 2.5] = 50.0
    assert scatter.middle_variances(draws) == pytest.approx(((high - low) / 2) ** 2)
    assert scatter.variances(draws) == pytest.approx(draws.var(axis=0))
    assert (scatter.variances(draws) > 10).all()


def test_scatter_between_minima_has_students_tails_and_opposite_signs() -> None:
    best = np.stack((5 + 0.5 * LINE + ZIGZAG, 3 + 0.5 * LINE - 2 * ZIGZAG, np.ones(4)), axis=1)
    drawn = np.tile(best, (4000, 1, 1))
    each = scatter.scatters(LINE, best, drawn)
    found = scatter.allowed(each, best, drawn, np.random.default_rng(0)) - drawn
    assert np.abs(found[..., 2]).max() == 0.0
    np.testing.assert_allclose(found[..., 1], -2 * found[..., 0], rtol=1e-9)
    scale = np.sqrt(each[0].square)
    assert np.median(np.abs(found[..., 0])) / scale == pytest.approx(stats.t.ppf(0.75, 2), rel=0.06)
    assert np.quantile(np.abs(found[..., 0]), 0.9) / scale == pytest.approx(stats.t.ppf(0.95, 2), rel=0.08)


def test_noise_is_scaled_to_the_scatter_that_is_seen() -> None:
    best = np.stack((5 + 0.5 * LINE + ZIGZAG, 3 + 0.5 * LINE - ZIGZAG, np.ones(4)), axis=1)
    noisy = best + 0.4 * MIDDLES[:, None, None] * np.array([1.0, -1.0, 0.0])
    each = scatter.scatters(LINE, best, noisy)
    found = scatter.allowed(each, best, noisy, np.random.default_rng(0))
    ratio = (found - best)[..., 0] / (noisy - best)[..., 0]
    np.testing.assert_allclose(ratio, ratio[:, :1].repeat(4, axis=1), rtol=1e-9)
    picks = np.random.default_rng(0)
    picks.normal(size=(2000, 4))
    chi = stats.chi2.ppf(picks.uniform(1e-3, 1.0, 2000), each[0].df) / each[0].df
    np.testing.assert_allclose(ratio[:, 0], np.sqrt(each[0].square / each[0].expected / chi), rtol=1e-9)


def test_minima_that_scatter_more_than_their_noise_are_a_finding() -> None:
    """Of four minima with two degrees of freedom F(2, 5) is 5.786 at 95 %, of seven F(5, 7) 3.972."""
    seven = np.log(np.geomspace(1e15, 1e21, 7))
    for x, y, limit in (
        (LINE, 5 + 0.5 * LINE + ZIGZAG, 5.786), (seven, seven + np.resize([0.1, -0.1], 7), 3.972)
    ):  # fmt: skip
        square = Scatter(x, y, np.ones(len(x))).square
        for factor, said in ((0.97, False), (1.03, True)):
            found = scatter.beyond(Scatter(x, y, np.full(len(x), square / (limit * factor))))
            assert [c.code for c in found] == ["valley_scatter"] * said
    four = Scatter(LINE, 5 + 0.5 * LINE + ZIGZAG, np.ones(4))
    (check,) = scatter.beyond(Scatter(LINE, four.y, np.full(4, four.square / 5.95)))
    assert check.message == "best sizes lie 2.4 times as far from their power law as the runs' noise lets them"
    assert "the intervals of exponents allow for it" in check.advice
    assert check.level == "warning"


@pytest.mark.parametrize(("count", "times"), [(3, "6.5"), (4, "2.2")])
def test_few_minima_say_what_that_makes_of_their_intervals(count: int, times: str) -> None:
    (found,) = scatter.few(count)
    assert (found.code, found.level) == ("few_valleys", "note")
    assert f"only {count} budgets with a minimum: {count - 2} degree" in found.message
    assert f"{times} times as wide" in found.advice
    assert scatter.few(0) == scatter.few(5) == []
    assert [scatter.few(n)[0].level for n in (1, 2)] == ["warning", "warning"]
