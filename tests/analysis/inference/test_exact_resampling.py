"""Which scheme rows ask for, what is drawn, and what residuals say of shared errors: by hand and by moments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.estimation import fit_problem, multistart, objectives
from analysis.estimation.optimizer import Array
from analysis.inference import error_draws, resampling
from analysis.inference.error_draws import Around, Parts
from analysis.laws.registry import FORMS
from tests.analysis import studies

POWER: Any = FORMS["batch"]


def groups_of(count: int, each: int) -> Any:
    return np.repeat(np.arange(count), each)


@pytest.mark.parametrize(
    ("sizes", "runs", "by", "shared"),
    [
        (np.arange(99), np.arange(99), "residuals", ""),
        (np.arange(100), np.arange(100), "runs", ""),
        (groups_of(30, 2), np.arange(60), "sizes", ""),
        (groups_of(29, 2), np.arange(58), "residuals", "sizes"),
        (np.arange(2), groups_of(2, 1), "residuals", ""),
        (np.concatenate((np.arange(20), np.arange(10))), np.arange(30), "residuals", "sizes"),  # 2/3 of the rows
        (np.concatenate((np.arange(21), np.arange(9))), np.arange(30), "residuals", ""),
        (groups_of(30, 4), groups_of(60, 2), "sizes", ""),
        (groups_of(30, 4), groups_of(30, 4), "runs", ""),
        (groups_of(12, 4), groups_of(12, 4), "residuals", "runs"),
        (groups_of(60, 2), groups_of(30, 4), "runs", ""),
        (np.arange(30), np.concatenate((np.arange(21), np.arange(9))), "residuals", ""),
        (np.arange(30), np.concatenate((np.arange(20), np.arange(10))), "residuals", "runs"),
    ],
)
def test_the_scheme_by_default(sizes: Any, runs: Any, by: str, shared: str) -> None:
    found = resampling.choose(sizes, runs)
    assert (found.by, found.shared, found.within) == (by, shared, "")
    assert resampling.choose(sizes, runs, "auto") == found


@pytest.mark.parametrize(
    ("sizes", "runs", "by", "shared", "within"),
    [
        (groups_of(8, 60), groups_of(40, 12), "residuals", "sizes", "runs"),
        (groups_of(29, 4), groups_of(58, 2), "residuals", "sizes", "runs"),
        (groups_of(30, 4), groups_of(60, 2), "sizes", "", ""),
        (groups_of(10, 6), groups_of(15, 4), "residuals", "runs", ""),  # runs of two sizes
        (np.repeat([*range(10), *range(5)], 4), groups_of(15, 4), "residuals", "sizes", "runs"),  # 2/3 of the runs
        (np.repeat([*range(11), *range(4)], 4), groups_of(15, 4), "residuals", "runs", ""),
        (np.repeat([*range(30), *range(4)], 4), groups_of(34, 4), "sizes", "", ""),
        (np.repeat([*range(29), *range(4)], 4), groups_of(33, 4), "runs", "", ""),
        (groups_of(5, 6), np.append(groups_of(10, 2), np.arange(10, 20)), "residuals", "sizes", "runs"),
        (groups_of(5, 6), np.append(groups_of(9, 2), np.arange(9, 21)), "residuals", "sizes", ""),  # most have one row
    ],
)
def test_runs_of_several_rows_are_groups_within_their_sizes(
    sizes: Any, runs: Any, by: str, shared: str, within: str
) -> None:
    found = resampling.choose(sizes, runs)
    assert (found.by, found.shared, found.within) == (by, shared, within)
    count = f"{len(np.unique(sizes))} model sizes and of {len(np.unique(runs))} runs"
    assert found.text.endswith(f"a random effect for each of {count}") == bool(within)


def test_rows_without_runs_are_runs_of_their_own() -> None:
    table = studies.as_rows(studies.isoflop(0))
    assert table.run is None
    assert resampling.plan(table) == resampling.choose(table.size, np.arange(20))
    checkpoints = replace(table, run=np.arange(20) // 4)
    assert resampling.plan(checkpoints) == resampling.choose(table.size, np.arange(20) // 4)
    assert resampling.plan(checkpoints).shared == "runs"


def test_schemes_say_what_they_draw() -> None:
    sizes, runs = groups_of(30, 2), np.arange(60)
    texts = {by: resampling.choose(sizes, runs, by).text for by in ("sizes", "runs", "rows", "seeds", "residuals")}
    assert texts["sizes"] == "percentile bootstrap over the 30 model sizes"
    assert texts["runs"] == "percentile bootstrap over the 60 runs"
    assert texts["rows"] == "percentile bootstrap over the 60 rows"
    assert texts["seeds"] == "bootstrap of the differences between seeds of one setting"
    assert texts["residuals"] == "residual bootstrap of 60 rows, residuals scaled up to the variance of the errors"
    few = resampling.choose(groups_of(12, 4), groups_of(12, 4)).text
    assert few == "residual bootstrap of 48 rows, with a random effect for each of 12 runs"
    assert "a random effect for each of 29 model sizes" in resampling.choose(groups_of(29, 2), np.arange(58)).text
    with pytest.raises(ValueError, match="use auto, sizes, runs, rows, seeds, residuals"):
        resampling.choose(sizes, runs, "budgets")


def test_eight_groups_are_the_fewest_that_are_drawn() -> None:
    assert resampling.choose(groups_of(8, 2), np.arange(16), "sizes").by == "sizes"
    with pytest.raises(ValueError, match="there are 7 sizes, and at least 8 are needed"):
        resampling.choose(groups_of(7, 2), np.arange(14), "sizes")
    with pytest.raises(ValueError, match="there are 7 runs"):
        resampling.choose(np.arange(14), groups_of(7, 2), "runs")
    with pytest.raises(ValueError, match="there are 7 rows"):
        resampling.choose(np.arange(7), np.arange(7), "rows")
    assert resampling.choose(np.arange(8), np.arange(8), "rows").by == "rows"
    for by in ("residuals", "seeds"):  # drawn around the fit, so that no whole row is missing in a resample
        assert resampling.choose(np.arange(7), np.arange(7), by).by == by


def test_groups_are_numbered_from_zero() -> None:
    size, run = np.array([7, 3, 3, 9]), np.array([5, 5, 8, 8])
    for plan, expected in (
        (resampling.Plan("sizes", ""), [1, 0, 0, 2]), (resampling.Plan("runs", ""), [0, 0, 1, 1]),
        (resampling.Plan("rows", ""), [0, 1, 2, 3]), (resampling.Plan("residuals", ""), [0, 1, 2, 3]),
        (resampling.Plan("residuals", "", "sizes"), [1, 0, 0, 2]),
        (resampling.Plan("residuals", "", "runs"), [0, 0, 1, 1]),
    ):  # fmt: skip
        np.testing.assert_array_equal(resampling.groups(plan, size, run), expected)


def test_weights_count_how_often_a_group_was_drawn() -> None:
    groups = np.array([0, 1, 1, 2, 3])
    weights = resampling.cluster_weights(groups, 4000, 7)
    assert weights.shape == (4000, 5)
    np.testing.assert_array_equal(weights[:, 1], weights[:, 2])
    np.testing.assert_array_equal(weights[:, [0, 1, 3, 4]].sum(axis=1), 4.0)
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.06)
    np.testing.assert_allclose(weights.var(axis=0), 0.75, atol=0.08)
    np.testing.assert_array_equal(weights, resampling.cluster_weights(groups, 4000, 7))
    assert (weights != resampling.cluster_weights(groups, 4000, 8)).any()


def drawn_anew(residual: Any, df: int, count: int, seed: int, centre: float | None = None) -> Any:
    """Return errors of a scale that is drawn as well, as those of valleys are."""
    scales = resampling.student_scales(df, count, seed)
    return resampling.redrawn(residual, df, count, seed, centre) * scales[:, None]


def test_redrawn_residuals_are_centred_and_widened() -> None:
    residual = np.array([3.0, 1.0, 2.0, 6.0, -1.0, 4.0])
    for centre, middle in ((None, 2.5), (2.0, 2.0)):
        drawn = drawn_anew(residual, 4, 6000, 1, centre)
        assert drawn.shape == (6000, 6)
        pool = residual - middle
        largest = np.abs(drawn).max(axis=1, keepdims=True)
        some = np.isclose(largest / np.abs(pool[pool != 0])[None], 0.0)
        assert not some.any()
        spread = (drawn**2).mean(axis=1)
        share = spread / ((residual - middle) ** 2).mean()
        # The mean of n / chi2(4) is n / 2, its median n / 3.357.
        assert np.median(share) == pytest.approx(6 / stats.chi2.ppf(0.5, 4), rel=0.12)
    again = drawn_anew(residual, 4, 6000, 1, 2.0)
    np.testing.assert_array_equal(drawn, again)


def test_percentiles_by_hand() -> None:
    """Weibull's plotting positions: of 99 draws the 2.5 % quantile lies between the second and the third."""
    draws = np.arange(1.0, 100.0)
    assert resampling.percentile(draws) == pytest.approx((2.5, 97.5))
    assert resampling.percentile(draws, 0.5) == pytest.approx((25.0, 75.0))
    lost = np.concatenate((draws[:95], [np.nan, np.inf, -np.inf, np.nan]))
    # 4 of 99 are lost: half of 5 % less 4/99 on either side, of the 95 that are left.
    tail = 0.5 * (0.05 - 4 / 99) / (95 / 99)
    assert resampling.percentile(lost) == pytest.approx((max(96 * tail, 1.0), min(96 * (1 - tail), 95.0)))
    some = np.concatenate((np.arange(1.0, 1000.0), np.full(41, np.nan)))
    tail = 0.5 * (0.05 - 41 / 1040) / (999 / 1040)
    assert resampling.percentile(some) == pytest.approx((1000 * tail, 1000 * (1 - tail)))
    assert resampling.percentile(np.concatenate((draws[:95], np.full(5, np.nan)))) is None
    assert resampling.percentile(np.array([1.0])) is None
    assert resampling.percentile(np.array([])) is None
    assert resampling.percentile(np.array([1.0, 2.0])) == (1.0, 2.0)


def test_intervals_hold_their_estimate_by_reflection() -> None:
    draws = np.arange(1.0, 100.0)
    found = resampling.percentile(draws)
    assert found is not None
    assert [resampling.interval(draws, value) for value in (*found, 50.0)] == [found] * 3
    assert resampling.interval(draws, 1.0) == pytest.approx((2 * 1.0 - 97.5, 97.5))
    assert resampling.interval(draws, 120.0) == pytest.approx((2.5, 2 * 120.0 - 2.5))
    assert resampling.interval(draws, 1.0, logs=True) == pytest.approx((1.0 / 97.5, 97.5))
    assert resampling.interval(draws, 120.0, logs=True) == pytest.approx((2.5, 120.0**2 / 2.5))
    below = draws - 10.0
    low, _high = resampling.percentile(below) or (np.nan, np.nan)
    assert resampling.interval(below, 120.0, logs=True) == pytest.approx(
        (low, 240.0 - low)
    )  # no logs of what is negative
    assert resampling.interval(draws, -3.0, logs=True) == pytest.approx((-6.0 - 97.5, 97.5))
    assert resampling.interval(draws, np.nan) == resampling.percentile(draws)
    assert resampling.interval(np.array([1.0]), 1.0) is None
    assert resampling.interval(draws, 30.0, 0.3) != resampling.percentile(draws, 0.3)
    zero = np.concatenate((np.zeros(10), draws))
    assert resampling.interval(zero, 120.0, logs=True) == pytest.approx((0.0, 240.0))


def test_estimates_beyond_their_draws_are_biased() -> None:
    draws = np.arange(1.0, 100.0)
    low, high = resampling.percentile(draws) or (np.nan, np.nan)
    answers = [resampling.biased(draws, value) for value in (2.49, low, 50.0, high, 97.51)]
    assert answers == [True, False, False, False, True]
    assert resampling.biased(draws, 26.0, 0.3)
    assert not resampling.biased(np.array([1.0]), 5.0)


def around(count: int = 12, *, seed: int = 0, plain: bool = False, loss: objectives.Loss | None = None,
           noise: Array | None = None, order: Any = None, fix: Any = None) -> Around:  # fmt: skip
    """Return a line in logs through noise, at its least squares."""
    generator = np.random.default_rng(seed)
    x = np.exp(np.linspace(-1, 2, count) + 5)
    own = 0.05 * generator.normal(size=count) if noise is None else noise
    line = 0.3 + 0.4 * np.log(x)
    target = np.exp(line) + own if plain else np.exp(line + own)
    p = fit_problem.problem(POWER, (x,), target, loss or objectives.Squared(), plain=plain, fix=fix)
    places = np.arange(count) if order is None else np.asarray(order)
    return Around(p, multistart.fit_point(p), places, seed)


def test_a_fit_around_which_errors_are_drawn() -> None:
    order = np.array([3, 1, 0, 2, 5, 4])
    for plain in (False, True):
        at = around(6, plain=plain, order=order)
        rows = np.column_stack((np.ones(6), at.problem.x[0]))
        assert (at.free, at.df) == (2, 4)
        np.testing.assert_allclose(at.fitted, rows @ at.point.theta)
        given = np.exp(at.problem.y) - np.exp(at.fitted) if plain else at.problem.y - at.fitted
        np.testing.assert_allclose(at.residual, (given - given.mean())[order], atol=1e-9)
        slopes = rows * np.exp(at.fitted)[:, None] if plain else rows
        np.testing.assert_allclose(at.slopes, slopes[order])
        drawn = np.array([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]])
        back = np.empty(6)
        back[order] = drawn[0]
        expected = np.log(np.exp(at.fitted) + back) if plain else at.fitted + back
        np.testing.assert_allclose(at.targets(drawn), [expected])
        other = np.log(np.exp(np.arange(6.0)) + back) if plain else np.arange(6.0) + back
        np.testing.assert_allclose(at.targets(drawn, np.arange(6.0)), [other])
        solved = at.solved(at.targets(np.zeros((2, 6))))
        np.testing.assert_allclose(solved, [at.point.theta] * 2, atol=1e-6)
    held = around(6, fix={"r": 0.4})
    assert (held.free, held.df, held.slopes.shape) == (1, 5, (6, 1))
    low = around(6, plain=True, order=order)
    assert (low.targets(np.full((1, 6), -1e9)) == np.log(1e-300)).all()
    numbers = [low.generator(k).uniform() for k in (2, 2, 3)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_scales_are_chi_squared_over_their_degrees_of_freedom() -> None:
    for df in (1.0, 4.5, 30.0):
        drawn = error_draws.scales(df, 20_000, np.random.default_rng(0))
        assert drawn.shape == (20_000,)
        np.testing.assert_allclose(
            np.quantile(drawn, [0.1, 0.5, 0.9]), stats.chi2.ppf([0.1, 0.5, 0.9], df) / df, rtol=0.06
        )
        assert drawn.min() >= stats.chi2.ppf(1e-3, df) / df


def test_medians_of_groups() -> None:
    groups = np.array([1, 0, 1, 0, 1, 2, 0, 1])
    residual = np.array([5.0, 1.0, 2.0, 7.0, 9.0, -4.0, 3.0, 3.0])
    np.testing.assert_array_equal(error_draws.middles(residual, groups), [4.0, 3.0, 4.0, 3.0, 4.0, -4.0, 3.0, 4.0])


def test_rows_far_from_all_or_from_their_group_are_brought_nearer() -> None:
    """Three robust deviations: 3 x 1.4826 times the median distance."""
    groups = np.array([0, 0, 0, 1, 1, 1])
    residual = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 500.0])
    # From the median 2.5 the distances are 2.5, 1.5, 0.5, 0.5, 1.5, 497.5; their median 1.5.
    whole = 3 * 1.4826 * 1.5
    once = np.minimum(residual, 2.5 + whole)
    # From their groups' medians 1 and 4: 1, 0, 1, 1, 0 and 5.17; the median of those above 0 is 1.
    expected = np.where(np.arange(6) == 5, 4.0 + 3 * 1.4826, once)
    np.testing.assert_allclose(error_draws.tamed(residual, groups), expected)
    mirrored = error_draws.tamed(-residual, groups)
    np.testing.assert_allclose(mirrored, -expected)
    np.testing.assert_allclose(error_draws.tamed(residual + 7, groups), expected + 7)
    np.testing.assert_allclose(error_draws.tamed(residual * 10, groups), expected * 10)
    np.testing.assert_array_equal(error_draws.tamed(np.ones(4), np.array([0, 0, 1, 1])), np.ones(4))
    alone = np.array([0.0, 1.0, 2.0, 900.0])
    np.testing.assert_allclose(error_draws.tamed(alone, np.arange(4)), [0, 1, 2, 1.5 + 3 * 1.4826 * 1.0])


def test_parts_of_errors_by_projection() -> None:
    """Sums of squares over and within groups, and what unit variances add to them: traces written out."""
    at = around(12)
    groups = np.repeat(np.arange(4), 3)
    found = error_draws.parts(at, groups)
    n, z = 12, (groups[:, None] == np.arange(4)).astype(float)
    basis = np.linalg.qr(at.slopes)[0]
    left = np.eye(n) - basis @ basis.T  # what a fit leaves
    over = z @ np.linalg.inv(z.T @ z) @ z.T
    within = np.eye(n) - over
    r = error_draws.tamed(at.residual, groups)
    assert found.between == pytest.approx(r @ over @ r)
    assert found.within == pytest.approx(r @ within @ r)
    u, v = left @ z @ z.T @ left, left @ left
    assert found.between_u == pytest.approx(np.trace(over @ u))
    assert found.within_u == pytest.approx(np.trace(within @ u))
    assert found.between_v == pytest.approx(np.trace(over @ v))
    assert found.within_v == pytest.approx(np.trace(within @ v))
    for form, df in ((over, found.between_df), (within, found.within_df)):
        inner = left @ form @ left
        assert df == pytest.approx(np.trace(inner) ** 2 / np.trace(inner @ inner))
    tied = Around(at.problem, at.point, at.order)
    # A constant that others say already, one that does nothing, and units: the space that they span is the same.
    combined = at.slopes @ [0.3, 1.7]
    tied.__dict__["slopes"] = np.column_stack((at.slopes * [1e12, 1e-12], combined, np.zeros(12)))
    np.testing.assert_allclose(
        list(vars(error_draws.parts(tied, groups)).values()), list(vars(found).values()), rtol=1e-6
    )


def test_independent_errors_are_mirrored_residuals_made_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    at = around(12)
    asked: list[int] = []

    def shrinkage(_: Around, count: int) -> float:
        asked.append(count)
        return 0.8

    monkeypatch.setattr(error_draws, "shrinkage", shrinkage)
    found = error_draws.independent(at, 4001)
    assert found.shape == (4001, 12)
    np.testing.assert_array_equal(found[:2000], -found[2001:])
    pool = at.residual * np.sqrt(12 / 10) / 0.8
    scale = found[:, :1] / pool
    assert ((scale**2 >= 0) & np.isclose(found[:, 1:2] / scale, pool, rtol=1e-6).any(axis=1, keepdims=True)).any()
    # The mean square of a resample is that of the pool over chi squared over its 10 degrees of freedom.
    assert np.median((found**2).mean(axis=1)) == pytest.approx(
        (pool**2).mean() / (stats.chi2.ppf(0.5, 10) / 10), rel=0.1
    )
    for resamples, calibration in ((1, 50), (300, 60), (5000, 200)):
        error_draws.independent(at, resamples)
        assert asked[-1] == calibration


def test_least_squares_hide_no_more_than_their_degrees_of_freedom() -> None:
    """Of a line through normal errors resamples of resamples move as far as resamples: no shrinkage beyond df."""
    assert error_draws.shrinkage(around(30, seed=3), 60) == pytest.approx(1.0, abs=0.15)
    near = error_draws.shrinkage(around(9, seed=3, loss=objectives.Huber(1e-6)), 60)
    assert 0.5 <= near < 0.9
    exact = around(12, noise=np.zeros(12))
    assert error_draws.shrinkage(exact, 20) <= 1.0


@pytest.mark.parametrize(("share", "expected"), [(0.2, 0.5), (0.7, 0.7), (1.4, 1.0), (np.nan, 1.0)])
def test_shrinkage_is_the_ratio_of_the_second_move_to_the_first(
    monkeypatch: pytest.MonkeyPatch, share: float, expected: float
) -> None:
    at = around(12)
    step = np.array([[1.0, 0.0]])
    moves = [at.point.theta + 0.1 * step, at.point.theta + 0.1 * step * (1 + share)]
    asked: list[Array] = []

    def solved(_: Around, y: Array) -> Array:
        asked.append(y)
        return np.repeat(moves[len(asked) - 1], len(y), axis=0)

    monkeypatch.setattr(Around, "solved", solved)
    assert error_draws.shrinkage(at, 7) == pytest.approx(expected)
    assert [y.shape for y in asked] == [(7, 12)] * 2
    pool = at.residual * np.sqrt(1.2)
    drawn = asked[0] - at.fitted
    assert np.isclose(drawn[:, :, None], pool).any(axis=2).all()
    left = asked[0] - (at.fitted + 0.1)
    own = (left - left.mean(axis=1, keepdims=True)) * np.sqrt(1.2)
    if np.isfinite(share):
        assert all(np.isclose(row[:, None], pool).any(axis=1).all() for row, pool in
                   zip(asked[1] - (at.fitted + 0.1), own, strict=True))  # fmt: skip


def test_shared_errors_have_the_variances_that_their_sums_of_squares_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    at = around(12)
    groups = np.repeat(np.arange(4), 3)
    sums = {"between_u": 6.0, "between_v": 2.0, "within_u": 1.5, "within_v": 8.0, "between_df": 3.0, "within_df": 7.0}
    asked: list[float] = []

    def scales(df: float, count: int, _: Any) -> Array:
        asked.append(df)
        return np.full(count, {3.0: 2.0, 7.0: 0.5}[df])

    monkeypatch.setattr(error_draws, "parts", lambda *_: Parts(9.0, 4.0, **sums))
    monkeypatch.setattr(error_draws, "scales", scales)
    found = error_draws.shared(at, groups, 20_001)
    assert asked == [3.0, 7.0]
    assert found.shape == (20_001, 12)
    np.testing.assert_array_equal(found[:10_000], -found[10_001:])
    # 6 u + 2 v = 9 / 2 and 1.5 u + 8 v = 4 / 0.5.
    u, v = np.linalg.solve([[6.0, 2.0], [1.5, 8.0]], [4.5, 8.0])
    covariance = (found.T @ found) / len(found)
    same = groups[:, None] == groups[None, :]
    off = same & ~np.eye(12, dtype=bool)
    assert covariance[off].mean() == pytest.approx(u, rel=0.06)
    assert np.abs(covariance[~same]).max() < 0.08
    own = np.diag(covariance).mean() - covariance[off].mean()
    assert 0.5 * v < own < 2.0 * v  # the shape of the rows' own part is the residuals'
    monkeypatch.setattr(error_draws, "parts", lambda *_: Parts(1.0, 8.0, **sums))
    alone = error_draws.shared(at, groups, 4000)
    assert np.abs((alone.T @ alone / 4000)[off].mean()) < 0.05 * np.diag(alone.T @ alone / 4000).mean()  # no negative u
    monkeypatch.setattr(error_draws, "parts", lambda *_: Parts(9.0, 0.1, **sums))
    common = error_draws.shared(at, groups, 50)
    np.testing.assert_allclose(common[:, 0], common[:, 2])  # nor v
    still = around(12, noise=np.zeros(12))
    still.__dict__["residual"] = np.zeros(12)
    monkeypatch.setattr(error_draws, "parts", lambda *_: Parts(9.0, 4.0, **sums))
    with np.errstate(all="raise"):
        assert np.isfinite(error_draws.shared(still, groups, 9)).all()


def test_errors_of_seeds_keep_how_the_law_misses_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    at = around(8, order=np.arange(8))
    asked: list[tuple[float, int]] = []

    def scales(df: float, count: int, _: Any) -> Array:
        asked.append((df, count))
        return np.full(count, 4.0)

    monkeypatch.setattr(error_draws, "scales", scales)
    cell = np.array([5, 5, 2, 2, 2, 9, 1, 5])
    found = error_draws.repeats(at, cell, 500)
    assert asked == [(4.0, 500)]
    residual = at.problem.y - at.fitted
    means = np.array([residual[cell == c].mean() for c in cell])
    pool = [(residual[i] - means[i]) * np.sqrt(3 / 2) for i in (0, 1, 7, 2, 3, 4)]
    drawn = (found - means) * 2.0
    assert np.isclose(drawn[:, :, None], pool).any(axis=2).all()
    assert len(np.unique(drawn.round(9))) == 6
    two = error_draws.repeats(at, np.array([0, 0, 1, 2, 3, 4, 5, 6]), 50)
    own = (residual[0] - residual[1]) / 2 * np.sqrt(2.0)
    np.testing.assert_allclose(np.abs(two[:, 3] - residual[3]) * 2.0, abs(own))
