"""Minima of budgets by three interpolations, against polyfit, scipy's spline and literal cases."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.interpolate import Akima1DInterpolator

from analysis.approaches import isoflop, power_laws
from tests.analysis import studies

X = np.array([-2.0, -1.0, 0.0, 1.5, 2.5])


def budget(flops: float, loss: Any, x: Any = X, middle: float = 1e6, order: Any = None) -> pd.DataFrame:
    """Return runs of ln N = ln(middle) + x with these losses in ln, C = 6 N D."""
    params = middle * np.exp(np.asarray(x))
    table = pd.DataFrame(
        {"params": params, "tokens": flops / 6 / params, "flops": flops, "loss": np.exp(np.asarray(loss))}
    )
    return table if order is None else table.iloc[order].reset_index(drop=True)


def bowl(bottom: float, x: Any = X, curve: float = 0.05, cubic: float = 0.0) -> np.ndarray:
    gap = np.asarray(x) - bottom
    return np.asarray(1.0 + curve * gap**2 + cubic * gap**3)


def test_a_parabola_by_polyfit_whatever_the_order_of_the_rows() -> None:
    loss = bowl(0.3, cubic=0.004)
    c2, c1, c0 = np.polyfit(X, loss, 2)
    at = -c1 / (2 * c2)
    for order in (None, [3, 0, 4, 1, 2]):
        found = isoflop.optima(budget(6e14, loss, order=order)).iloc[0]
        assert found["status"] == "minimum"
        assert found["reason"] == ""
        assert found["points"] == 5
        assert found["flops"] == pytest.approx(6e14)
        assert found["params_opt"] == pytest.approx(1e6 * np.exp(at))
        assert found["tokens_opt"] == pytest.approx(1e8 / np.exp(at))
        assert found["loss_opt"] == pytest.approx(np.exp(c0 + c1 * at + c2 * at**2))


def test_the_nearest_sizes_alone() -> None:
    loss = bowl(0.3, cubic=0.012)
    near = np.argsort(np.abs(X - X[np.argmin(loss)]), kind="stable")[:3]
    c2, c1, _ = np.polyfit(X[near], loss[near], 2)
    found = isoflop.optima(budget(6e14, loss), nearest=3).iloc[0]
    assert found["params_opt"] == pytest.approx(1e6 * np.exp(-c1 / (2 * c2)))
    assert found["params_opt"] != pytest.approx(isoflop.optima(budget(6e14, loss)).iloc[0]["params_opt"], rel=1e-3)


def test_tokens_are_read_off_between_runs() -> None:
    """Tokens of these runs are not C / 6 N: they are interpolated in logs."""
    table = budget(6e14, bowl(0.5)).assign(tokens=lambda t: t["tokens"] * np.array([1.0, 1.1, 1.2, 1.5, 1.6]))
    found = isoflop.optima(table).iloc[0]
    logs = np.log(table["tokens"].to_numpy())
    assert np.log(found["tokens_opt"]) == pytest.approx(logs[2] + (logs[3] - logs[2]) / 3)


@pytest.mark.parametrize(
    ("loss", "x", "status", "reason"),
    [
        (bowl(-2.5), X, "edge", "the minimum lies outside the sizes, at 82.1K parameters"),
        (bowl(3.0), X, "edge", "the minimum lies outside the sizes, at 20.1M parameters"),
        (2 - bowl(0.3), X, "inverted", "the parabola opens downwards"),
        (bowl(0.0, [-1, 1]), [-1, 1], "too_few", "2 sizes: at least three are needed"),
        (bowl(0.0, [-1, 1, 1]), [-1, 1, 1], "too_few", "2 sizes: at least three are needed"),
        (bowl(0.0, [-1, 0.5, 1]), [-1, 0.5, 1], "minimum", ""),
    ],
)
def test_what_is_left_out_and_why(loss: Any, x: Any, status: str, reason: str) -> None:
    found = isoflop.optima(budget(6e14, loss, x)).iloc[0]
    assert (found["status"], found["reason"]) == (status, reason)
    assert np.isnan(found["params_opt"]) == (status != "minimum")
    assert np.isnan(found["loss_opt"]) == np.isnan(found["tokens_opt"]) == (status != "minimum")


def test_a_minimum_beyond_the_very_edge_is_none() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    for bottom, status in ((1e-6, "minimum"), (-1e-6, "edge"), (4 - 1e-6, "minimum"), (4 + 1e-6, "edge")):
        one = isoflop._Budget(1.0, x, x, (x - bottom) ** 2)
        assert isoflop._optimum([one], 0, "parabola", None)[3] == status
    flat = isoflop._Budget(1.0, x, x, np.zeros(5))
    assert isoflop._optimum([flat], 0, "parabola", None)[3] == "flat"


@pytest.mark.parametrize(
    ("curve", "status"), [(2.4e-11, "flat"), (2.6e-11, "minimum"), (-2.4e-11, "flat"), (-2.6e-11, "inverted")]
)
def test_a_valley_less_deep_than_rounding_is_flat(curve: float, status: str) -> None:
    """Of sizes from -2 to 2 around the middle the valley is four times its curvature deep."""
    x = np.linspace(-2.0, 2.0, 5)
    found = isoflop._optimum([isoflop._Budget(1.0, x, x, curve * (x - 0.3) ** 2)], 0, "parabola", None)
    assert found[3] == status
    assert bool(found[4]) == (status != "minimum")


def test_akimas_spline_is_scipys_on_a_fine_grid() -> None:
    loss = bowl(0.37, cubic=0.01)
    found = isoflop.optima(budget(6e14, loss), "akima").iloc[0]
    grid = np.unique(np.concatenate([np.linspace(a, b, 25) for a, b in itertools.pairwise(X)]))
    curve = Akima1DInterpolator(X, loss)(grid)
    best = int(np.argmin(curve))
    assert found["params_opt"] == pytest.approx(1e6 * np.exp(grid[best]))
    assert found["loss_opt"] == pytest.approx(np.exp(curve[best]))
    assert found["tokens_opt"] == pytest.approx(1e8 * np.exp(-grid[best]))
    for bottom, side in ((-3.0, "smallest"), (3.5, "largest")):
        edge = isoflop.optima(budget(6e14, bowl(bottom)), "akima").iloc[0]
        assert (edge["status"], edge["reason"]) == ("edge", f"the lowest loss is at the {side} size")
        assert np.isnan(edge["loss_opt"])


def test_a_size_run_twice_is_one_knot() -> None:
    x = np.sort(np.append(X, 0.0))
    table = budget(6e14, bowl(0.37, x), x)
    single = isoflop.optima(budget(6e14, bowl(0.37)), "akima").iloc[0]
    assert isoflop.optima(table, "akima").iloc[0]["params_opt"] == pytest.approx(single["params_opt"])


def test_repeats_of_a_size_are_their_mean_whichever_comes_first() -> None:
    x = np.repeat(X, 2)
    away = np.tile([0.01, -0.01], len(X)) * np.repeat(np.arange(1, len(X) + 1), 2)
    table = budget(6e14, bowl(0.37, x) + away, x)
    table["tokens"] *= np.exp(away)
    single = isoflop.optima(budget(6e14, bowl(0.37)), "akima").drop(columns="points")
    turned = table.iloc[np.arange(len(x)) ^ 1].reset_index(drop=True)
    for each in (table, turned):
        pd.testing.assert_frame_equal(isoflop.optima(each, "akima").drop(columns="points"), single)
    for method, nearest in (("parabola", None), ("parabola", 5), ("surface", None)):
        first, second = (isoflop.optima(each, method, nearest) for each in (table, turned))
        pd.testing.assert_frame_equal(first, second, rtol=1e-12)


def test_a_surface_of_neighbours_is_exact_on_an_exact_quadratic() -> None:
    budgets = [6e13, 6e14, 9e15, 3e16]

    def loss(x: Any, flops: float) -> np.ndarray:
        z = np.log(flops / 6e14)
        return np.asarray(2.0 + 0.05 * x**2 - 0.02 * x - 0.1 * z + 0.003 * z**2 - 0.04 * x * z)

    shifts = (-0.5, 0.0, 0.7, 1.0)
    table = pd.concat([budget(c, loss(X + s, c), X + s) for c, s in zip(budgets, shifts, strict=True)])
    found = isoflop.optima(table, "surface")
    assert (found["status"] == "minimum").all()
    for i, flops in enumerate(budgets):
        z = np.log(flops / 6e14)
        at = (0.02 + 0.04 * z) / 0.1
        if i in (1, 2):  # of two budgets at an end no curvature in ln C is taken: the level takes it up
            assert found["params_opt"][i] == pytest.approx(1e6 * np.exp(at), rel=1e-9)
            assert np.log(found["loss_opt"][i]) == pytest.approx(
                2.0 + 0.05 * at**2 - 0.02 * at - 0.1 * z + 0.003 * z**2 - 0.04 * at * z, rel=1e-9
            )


def test_a_surface_at_an_end_takes_one_neighbour_and_no_square_of_compute() -> None:
    """With z in {0, z1} a quadratic in z is a line: the level, slope and curvature at z = 0 are exact."""

    def loss(x: Any, z: float) -> np.ndarray:
        return np.asarray(2.0 + 0.05 * x**2 - 0.02 * x - 0.1 * z - 0.04 * x * z)

    z = np.log(10.0)
    table = pd.concat([budget(6e14, loss(X, 0.0)), budget(6e15, loss(X, z)), budget(6e16, loss(X, 4.0) + 3 * X**3)])
    budgets = isoflop._budgets(table)
    slope, curve, level = isoflop._local(budgets, 0)
    middle = float(X.mean())
    want = np.polynomial.Polynomial([2.0, -0.02, 0.05])
    assert (level, slope, curve) == pytest.approx((want(middle), want.deriv()(middle), 0.05), rel=1e-9)
    two = budgets[:2]
    slope, curve, level = isoflop._local(two, 1)
    want = np.polynomial.Polynomial([2.0 - 0.1 * z, -0.02 - 0.04 * z, 0.05])
    assert (level, slope, curve) == pytest.approx((want(middle), want.deriv()(middle), 0.05), rel=1e-9)


def test_two_budgets_have_a_surface_and_one_has_a_parabola() -> None:
    one = budget(6e14, bowl(0.3, cubic=0.01))
    alone = isoflop.optima(one, "surface").iloc[0]
    assert alone["params_opt"] == isoflop.optima(one).iloc[0]["params_opt"]
    both = pd.concat([one, budget(6e15, bowl(-0.9, cubic=-0.02))])
    assert isoflop.optima(both, "surface").iloc[0]["params_opt"] != pytest.approx(alone["params_opt"], rel=1e-3)


def test_budgets_are_grouped_by_their_labels_or_within_a_per_cent() -> None:
    exact = pd.concat([budget(6e14 * f, bowl(0.3)).iloc[[i]] for i, f in enumerate((1.0, 1.004, 0.997, 1.009, 1.0))])
    found = isoflop.optima(exact)
    assert len(found) == 1
    assert found["flops"][0] == pytest.approx(6e14 * np.prod([1.0, 1.004, 0.997, 1.009, 1.0]) ** 0.2)
    two = pd.concat([budget(6e15, bowl(0.3)), budget(6e14, bowl(0.3))])
    assert isoflop.optima(two)["flops"].tolist() == pytest.approx([6e14, 6e15])
    labelled = two.assign(flops_budget=1e15)
    assert len(isoflop.optima(labelled)) == 1
    partly = two.assign(flops_budget=[1e15] * 5 + [np.nan] * 5)
    assert isoflop.optima(partly)["flops"].tolist() == pytest.approx([6e14, 6e15])
    wrong = pd.concat([two, two.iloc[[0]].assign(loss=np.nan), two.iloc[[1]].assign(tokens=0.0)])
    assert isoflop.optima(wrong)["points"].tolist() == [5, 5]
    tiny = two.assign(params=lambda t: t["params"] * 1e-6, tokens=lambda t: t["tokens"] * 1e6)
    assert isoflop.optima(tiny)["points"].tolist() == [5, 5]
    rows = studies.as_rows(two)
    assert isoflop.optima(rows)["params_opt"].tolist() == pytest.approx(isoflop.optima(two)["params_opt"].tolist())


def test_exponents_by_the_textbook() -> None:
    flops = np.array([1e15, 3e15, 1e16, 1e17, np.nan])
    best = np.array([1e6, 2.1e6, 3e6, 1.2e7, 5.0])
    found = isoflop.exponents(pd.DataFrame({"flops": flops, "params_opt": best}), confidence=0.9)
    line = stats.linregress(np.log(flops[:4]), np.log(best[:4]))
    assert found.exponent == pytest.approx(line.slope)
    assert found.reference_flops == pytest.approx(float(np.prod(flops[:4]) ** 0.25))
    assert found.coefficient == pytest.approx(float(np.prod(best[:4]) ** 0.25))
    reach = stats.t.ppf(0.95, 2) * line.stderr
    assert found.exponent_interval == pytest.approx((line.slope - reach, line.slope + reach))
    assert found.bse == pytest.approx(line.stderr)
    rest = np.log(best[:4]) - line.intercept - line.slope * np.log(flops[:4])
    half = stats.t.ppf(0.95, 2) * np.sqrt((rest**2).sum() / 2 / 4)
    middle = np.log(found.coefficient)
    assert found.coefficient_interval == pytest.approx((np.exp(middle - half), np.exp(middle + half)))
    assert (found.points, found.df_resid) == (4, 2)
    lost = isoflop.exponents(pd.DataFrame({"flops": flops[:4], "y": [1e6, np.nan, 0.0, 1.2e7]}), "y")
    assert (lost.points, lost.df_resid, lost.bse) == (2, 0, None)
    assert lost.exponent_interval is None
    assert lost.coefficient_interval is None
    three = isoflop.exponents(pd.DataFrame({"flops": flops[:3], "y": best[:3]}), "y")
    assert three.bse is not None
    assert three.exponent_interval is not None
    small = isoflop.exponents(pd.DataFrame({"flops": flops[:3], "y": [0.5, 0.6, 0.8]}), "y")
    assert small.points == 3
    default = isoflop.exponents(pd.DataFrame({"flops": flops[:4], "params_opt": best[:4]}))
    reach = stats.t.ppf(0.975, 2) * line.stderr
    assert default.exponent_interval == pytest.approx((line.slope - reach, line.slope + reach))


def test_the_line_is_that_of_statsmodels_which_gives_more_of_it() -> None:
    flops = np.array([1e15, 3e15, 1e16, 1e17])
    found = {"flops": flops, "params_opt": np.array([1e6, 2.1e6, 3e6, 1.2e7])}
    results, law = isoflop.ols(found), isoflop.exponents(found, confidence=0.9)
    level, slope = results.conf_int(0.1)
    assert law.exponent == pytest.approx(results.params[1], rel=1e-12)
    assert law.coefficient == pytest.approx(np.exp(results.params[0]), rel=1e-12)
    assert law.bse == pytest.approx(results.bse[1], rel=1e-10)
    assert law.exponent_interval == pytest.approx(tuple(slope), rel=1e-10)
    assert law.coefficient_interval == pytest.approx(tuple(np.exp(level)), rel=1e-10)
    assert results.outlier_test().shape == (4, 3)


def test_a_line_far_from_its_reference_has_a_less_certain_intercept() -> None:
    x, y = np.array([5.0, 6.0, 7.5, 9.0]), np.array([1.0, 1.4, 2.3, 2.9])
    line, peer = power_laws.line(x, y), stats.linregress(x, y)
    assert line.params == pytest.approx((peer.intercept, peer.slope))
    assert line.bse == pytest.approx((peer.intercept_stderr, peer.stderr))
    assert power_laws.line(x[:2], y[:2]).conf_int(0.95) == (None, None)


def test_runs_at_one_budget_twice_are_no_power_law() -> None:
    with pytest.raises(ValueError, match="1 budget with a best size"):
        isoflop.exponents({"flops": [1e15, 1e15], "params_opt": [1e6, 2e6]})


@pytest.mark.parametrize(
    ("y", "what"), [("params_opt", "a best size"), ("tokens_opt", "best tokens"), ("loss_opt", "loss_opt")]
)
def test_one_point_is_no_power_law(y: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"1 budget with {what} inside the sizes swept; a power law needs two"):
        isoflop.exponents({"flops": [1e15, 1e16], y: [1e6, np.nan]}, y)
