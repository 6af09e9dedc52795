"""Curves through most of the rows: how close they come, and that a few wrong rows do not bend them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from analysis.diagnostics import smooth
from tests.analysis import studies


@pytest.mark.parametrize(
    "law", [(1.7, 60.0, 110.0, 0.33, 0.3), (0.9, 20.0, 900.0, 0.22, 0.42), (2.5, 5e3, 40.0, 0.6, 0.25)]
)
def test_both_curves_come_close_to_a_law(law: tuple[float, ...]) -> None:
    rows = studies.as_rows(studies.isoflop(0, law=law, ratios=(2, 4, 8, 16, 32, 64)))
    y = np.log(rows.loss)
    few = studies.as_rows(studies.isoflop(0, law=law).iloc[::2])
    for curve in smooth.curves(rows):
        assert np.abs(y - curve.through(y)).mean() < 1e-2
        assert np.abs(y - curve.through(y, quick=True)).mean() < 2e-2
    assert np.abs(np.log(few.loss) - smooth.curves(few)[1].through(np.log(few.loss))).mean() < 0.03


def test_a_few_wrong_rows_do_not_bend_a_curve() -> None:
    rows = studies.as_rows(studies.isoflop(0, ratios=(2, 4, 8, 16, 32, 64)))
    y = np.log(rows.loss)
    wrong = y.copy()
    wrong[[2, 9, 17]] += 0.4
    for curve in smooth.curves(rows):
        assert np.abs(curve.through(wrong) - y).max() < 0.03


def test_powers_never_rise() -> None:
    rows = studies.as_rows(studies.isoflop(0))
    rising = np.log(rows.params) / 10.0
    on = smooth.curves(rows)[1].through(rising)
    order = np.argsort(rows.params)
    tokens = smooth.curves(rows)[1].through(-rising)
    assert np.ptp(on) < np.ptp(rising) and np.isfinite(tokens).all() and order.size == len(on)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (20_000, 20_000), (20_001, 20_000), (60_000, 20_000)])
def test_very_many_rows_are_thinned(count: int, kept: int) -> None:
    found = smooth.evenly(count, 20_000)
    assert (len(found), found[0], found[-1]) == (kept, 0, count - 1)
    assert len(set(found.tolist())) == kept
    some = smooth.anywhere(count, 20_000)
    assert len(set(some.tolist())) == kept and (np.diff(some) > 0).all()
    assert some.tolist() == smooth.anywhere(count, 20_000).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_of_powers_is_solved_as_nonnegative_least_squares_are(seed: int) -> None:
    """Where terms are left out one by one the answer is that of scipy's active sets."""
    generator = np.random.default_rng(seed)
    n, d = generator.normal(0, 1, (2, 30))
    weights = generator.uniform(0.1, 3.0, (2, 30))
    loss = 2.0 + 0.3 * np.exp(-0.3 * n) - (1.0 if seed % 2 else -0.4) * np.exp(-0.5 * d) + generator.normal(0, 0.1, 30)
    left_out = 0
    for most in (30, 20):
        terms = smooth.Terms.of(n, d, [(0.2, 0.35), (0.6, 0.6)], most)
        assert terms.values.shape == (2, 3, 30) and terms.fitted.shape == (2, 3, most)
        found = smooth._without_negative(terms, weights[:, :most], loss[terms.some])
        left_out += (found == 0.0).sum()
        for ours, values, weight in zip(found, terms.fitted, weights[:, :most], strict=True):
            theirs, _ = nnls((values * np.sqrt(weight)).T, loss[terms.some] * np.sqrt(weight))
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    assert bool(left_out) == bool(seed % 2)
