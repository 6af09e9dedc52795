"""Approach 2's interpolations, the approaches side by side, and forms compared: by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import interpolate, stats

from analysis import approaches, comparison, fit_law, isoflop
from analysis.forms import SURFACE
from analysis.lawfit import LawFit
from analysis.results import Identified, PowerLaw
from analysis.rows import rows
from tests.analysis import studies

SIZES = np.array([1.0, 2.0, 3.5, 5.0, 6.0])


def bowl(flops: float, best: float, depth: float, bend: float = 0.3, sizes: Any = SIZES) -> pd.DataFrame:
    """Return a budget whose ln loss is a parabola in ln N."""
    loss = np.exp(depth + bend * (sizes - best) ** 2)
    return pd.DataFrame({"params": np.exp(sizes), "tokens": flops / 6 / np.exp(sizes), "flops": flops, "loss": loss})


def budgets(*every: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(every, ignore_index=True).sample(frac=1.0, random_state=1).reset_index(drop=True)


def test_parabolas_are_met_exactly() -> None:
    table = budgets(bowl(1e12, 3.2, 0.5), bowl(1e14, 4.1, 0.2), bowl(1e13, 3.7, 0.4, 1.5))
    found = isoflop.optima(table)
    np.testing.assert_allclose(found["flops"], [1e12, 1e13, 1e14])
    np.testing.assert_allclose(np.log(found["params_opt"]), [3.2, 3.7, 4.1], rtol=1e-9)
    np.testing.assert_allclose(np.log(found["loss_opt"]), [0.5, 0.4, 0.2], rtol=1e-9)
    tokens = np.log(found["flops"] / 6) - [3.2, 3.7, 4.1]
    np.testing.assert_allclose(np.log(found["tokens_opt"]), tokens, rtol=1e-9)
    assert list(found["status"]) == ["minimum"] * 3
    assert list(found["reason"]) == [""] * 3
    assert list(found["points"]) == [5] * 3


def test_sizes_nearest_to_the_lowest_alone() -> None:
    """The far sizes lie on another curve: of the three nearest the parabola is exact again."""
    table = bowl(1e12, 3.2, 0.5)
    table.loc[[0, 4], "loss"] *= 1.3
    assert np.log(isoflop.optima(table, nearest=3)["params_opt"][0]) == pytest.approx(3.2, rel=1e-9)
    assert np.log(isoflop.optima(table)["params_opt"][0]) != pytest.approx(3.2, rel=1e-3)
    with_edge = isoflop.optima(table, nearest=4)["params_opt"][0]
    near = SIZES[:4] - SIZES.mean()  # of two equally far the smaller
    loss = np.log(table["loss"].to_numpy()[:4])
    curve, slope, _ = np.polyfit(near, loss, 2)
    assert np.log(with_edge) == pytest.approx(SIZES.mean() - slope / 2 / curve)


def test_why_a_budget_has_no_minimum() -> None:
    cases = {
        "edge": bowl(1e12, 6.5, 0.5), "inverted": bowl(1e12, 3.0, 2.0, -0.1), "too_few": bowl(1e12, 3.2, 0.5).head(2),
    }  # fmt: skip
    reasons = {
        "edge": f"the minimum lies outside the sizes, at {np.exp(6.5):.3g} parameters",
        "inverted": "the parabola opens downwards", "too_few": "2 sizes: at least three are needed",
    }  # fmt: skip
    for status, table in cases.items():
        row = isoflop.optima(table).iloc[0]
        assert (row["status"], row["reason"]) == (status, reasons[status])
        assert row[["params_opt", "tokens_opt", "loss_opt"]].isna().all()
    assert isoflop.optima(bowl(1e12, 0.8, 0.5)).iloc[0]["status"] == "edge"
    assert isoflop.optima(bowl(1e12, 1.05, 0.5)).iloc[0]["status"] == "minimum"
    assert isoflop.optima(bowl(1e12, 5.95, 0.5)).iloc[0]["status"] == "minimum"
    three = bowl(1e12, 3.2, 0.5).iloc[[0, 2, 4]]
    assert isoflop.optima(three).iloc[0]["status"] == "minimum"
    repeated = pd.concat([bowl(1e12, 3.2, 0.5).head(2)] * 3)
    assert isoflop.optima(repeated).iloc[0]["status"] == "too_few"
    flat = bowl(1e12, 3.0, 1.0, 0.0)
    assert isoflop.optima(flat).iloc[0]["status"] in ("inverted", "edge", "minimum")


def test_akima_is_scipys_on_a_fine_grid() -> None:
    table = bowl(1e12, 3.2, 0.5, 0.1)
    row = isoflop.optima(table.sample(frac=1.0, random_state=3), "akima").iloc[0]
    curve = interpolate.Akima1DInterpolator(SIZES, np.log(table["loss"]))
    grid = np.unique(np.concatenate([np.linspace(a, b, 25) for a, b in itertools.pairwise(SIZES)]))
    best = grid[np.argmin(curve(grid))]
    assert np.log(row["params_opt"]) == pytest.approx(best, rel=1e-12)
    assert np.log(row["loss_opt"]) == pytest.approx(float(curve(best)), rel=1e-12)
    assert np.log(row["tokens_opt"]) == pytest.approx(np.log(1e12 / 6) - best, rel=1e-12)
    for best, side in ((-3.0, "smallest"), (9.0, "largest")):
        edge = isoflop.optima(bowl(1e12, best, 0.5, 0.1), "akima").iloc[0]
        assert (edge["status"], edge["reason"]) == ("edge", f"the lowest loss is at the {side} size")
        assert np.isnan(edge["params_opt"])
    # The lowest may be the last but one of the grid.
    near = bowl(1e12, 1.02, 0.5, 0.1)
    assert isoflop.optima(near, "akima").iloc[0]["status"] == "minimum"
    assert isoflop.optima(bowl(1e12, 5.97, 0.5, 0.1), "akima").iloc[0]["status"] == "minimum"


def quadratic(sizes: Any, flops: Any) -> Any:
    x, z = np.asarray(sizes) - 3.0, np.log(flops) - np.log(1e13)
    return 0.6 + 0.2 * x + 0.3 * x * x - 0.1 * z - 0.25 * x * z + 0.02 * z * z


def test_surfaces_through_neighbours_are_met_exactly() -> None:
    """A quadratic in ln N and ln C: d/dx = 0.2 + 0.6 x - 0.25 z."""
    every = []
    flops = np.exp(np.log(1e13) + np.array([-1.0, 0.0, 1.0, 2.0]))
    for k, budget in enumerate(flops):
        sizes = SIZES + 0.1 * k
        part = bowl(budget, 3.0, 0.0, sizes=sizes)
        every.append(part.assign(loss=np.exp(quadratic(sizes, budget))))
    found = isoflop.optima(budgets(*every), "surface")
    best = 3.0 + (0.25 * np.array([-1.0, 0.0, 1.0, 2.0]) - 0.2) / 0.6
    # Between two neighbours z z is told by neither: only budgets with two are exact in level, all are in place.
    np.testing.assert_allclose(np.log(found["params_opt"])[1:3], best[1:3], rtol=1e-7)
    np.testing.assert_allclose(np.log(found["loss_opt"])[1:3], quadratic(best, flops)[1:3], rtol=1e-7)
    np.testing.assert_allclose(np.log(found["params_opt"]), best, rtol=1e-7)
    alone = isoflop.optima(every[0], "surface")
    assert np.log(alone["params_opt"][0]) == pytest.approx(best[0])
    two = isoflop.optima(budgets(*every[:2]), "surface")
    np.testing.assert_allclose(np.log(two["params_opt"]), best[:2], rtol=1e-7)
    # Only next neighbours count.
    odd = every[3].assign(loss=np.exp(quadratic(SIZES + 0.3, flops[3]) + 0.4 * SIZES**2))
    again = isoflop.optima(budgets(*every[:3], odd), "surface")
    np.testing.assert_allclose(np.log(again["params_opt"])[:2], best[:2], rtol=1e-7)
    assert abs(np.log(again["params_opt"][2]) - best[2]) > 1e-3


def test_budgets_are_runs_of_equal_flops_or_of_one_label() -> None:
    table = bowl(1e12, 3.2, 0.5)
    near = table.assign(flops=1e12 * np.array([1.0, 1.004, 0.998, 1.003, 1.001]))
    found = isoflop.optima(near)
    assert len(found) == 1
    assert found["flops"][0] == pytest.approx(1e12 * np.exp(np.log([1.0, 1.004, 0.998, 1.003, 1.001]).mean()))
    far = table.assign(flops=1e12 * np.array([1.0, 1.1, 0.9, 1.2, 0.8]))
    assert len(isoflop.optima(far)) == 5
    named = far.assign(flops_budget=1e12)
    assert len(isoflop.optima(named)) == 1
    some = far.assign(flops_budget=[1e12, 1e12, 1e12, np.nan, 1e12])
    assert sorted(isoflop.optima(some)["points"]) == [1, 4]
    bad = pd.concat([table, table.head(1).assign(loss=np.nan), table.head(1).assign(loss=-1.0),
                     table.head(1).assign(tokens=0.0), table.head(1).assign(params=0.5)])  # fmt: skip
    assert list(isoflop.optima(bad)["points"]) == [6]
    columns: Any = {name: far[name].to_numpy() for name in ("params", "tokens", "flops", "loss")}
    held = rows(tuple("abcde"), **columns, nominal=np.full(5, 1e12))
    assert len(isoflop.optima(held)) == 1


def test_exponents_are_least_squares_with_students_intervals() -> None:
    flops = np.array([1e12, 1e13, 1e14, 1e15, 1e16])
    values = 3.0 * (flops / 1e14) ** 0.45 * np.exp([0.01, -0.02, 0.015, 0.0, -0.005])
    table = pd.DataFrame({"flops": flops, "params_opt": values, "tokens_opt": 1 / values})
    table.loc[5] = [1e17, np.nan, 2.0]
    table.loc[6] = [np.inf, 5.0, -1.0]
    for confidence in (0.95, 0.5):
        law = isoflop.exponents(table, confidence=confidence)
        line = stats.linregress(np.log(flops / 1e14), np.log(values))
        reach = stats.t.ppf(0.5 + confidence / 2, 3)
        assert (law.exponent, law.bse) == pytest.approx((line.slope, line.stderr))
        assert law.exponent_interval == pytest.approx(
            (line.slope - reach * line.stderr, line.slope + reach * line.stderr)
        )
        assert law.coefficient == pytest.approx(np.exp(line.intercept))
        error = line.intercept_stderr
        assert law.coefficient_interval == pytest.approx(
            (np.exp(line.intercept - reach * error), np.exp(line.intercept + reach * error))
        )
        assert law.reference_flops == pytest.approx(1e14)
        assert (law.points, law.df_resid) == (5, 3)
    assert isoflop.exponents(table, "tokens_opt").points == 6
    two = isoflop.exponents(table.head(2))
    assert (two.exponent_interval, two.coefficient_interval, two.bse, two.df_resid) == (None, None, None, 0)
    three = isoflop.exponents(table.head(3))
    assert three.exponent_interval is not None
    assert three.bse is not None
    with pytest.raises(ValueError, match="1 budget with a best size inside"):
        isoflop.exponents(table.head(1))
    with pytest.raises(ValueError, match="1 budget with best tokens inside"):
        isoflop.exponents(table.head(1), "tokens_opt")
    with pytest.raises(ValueError, match="1 budget with flops inside"):
        isoflop.exponents(table.head(1), "flops")
    assert isoflop.exponents(table.head(5).assign(params_opt=values / 1e9)).points == 5


def test_rows_of_a_table_side_by_side() -> None:
    table = studies.isoflop(0, noise=0.002).assign(lr=0.1, note="x")
    table.loc[3, "loss"] = np.nan
    table.loc[4, "tokens"] = -1.0
    table["run"] = np.arange(20) // 2
    table["size_group"] = [f"s{i % 6}" for i in range(20)]
    found = approaches._rows(table)
    assert len(found) == 18
    assert found.keys[:4] == ("row1", "row2", "row3", "row6")
    assert set(found.extra) >= {"lr"}
    np.testing.assert_array_equal(found.extra["lr"], np.full(18, 0.1))
    good = np.array([i for i in range(20) if i not in (3, 4)])
    np.testing.assert_array_equal(found.loss, table["loss"].to_numpy()[good])
    assert found.run is not None
    assert len(np.unique(found.run)) == 10
    np.testing.assert_array_equal(found.labels[found.budget], table["flops_budget"].to_numpy()[good])
    assert len(np.unique(found.size)) == 6
    small = table.assign(params=table["params"] / table["params"].max())
    assert len(approaches._rows(small)) == 18


def law(exponent: float, coefficient: float, interval: Any = (0.1, 0.9)) -> PowerLaw:
    return PowerLaw(coefficient, exponent, 1e10, (0.0, 9.0), interval, 0.1, 4, 2)


def test_a_row_of_two_power_laws() -> None:
    found = approaches._from_laws(law(0.5, 2.0), law(0.25, 3.0), 1e14)
    assert found == {
        "a": 0.5, "a_low": 0.1, "a_high": 0.9, "b": 0.25, "params": pytest.approx(200.0), "tokens": pytest.approx(30.0),
        "tokens_per_param": pytest.approx(0.15), "points": 4,
    }  # fmt: skip
    open_ended = approaches._from_laws(law(0.5, 2.0, None), law(0.25, 3.0), 1e14)
    assert np.isnan(open_ended["a_low"])
    assert np.isnan(open_ended["a_high"])


@cache
def fitted() -> LawFit:
    """Return a fit of which all is known to be identified."""
    found = fit_law(studies.isoflop(0, noise=0.001), loss="squared", resamples=0)
    found.__dict__["identified"] = dict.fromkeys(found.names, Identified(True))
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Answer for the envelopes at once; return which of the two was asked."""
    asked: list[bool] = []

    def envelope(*_: Any, hull: bool, **__: Any) -> Any:
        asked.append(hull)
        laws = {"params": law(0.5, 4.0 if hull else 2.0), "tokens": law(0.5, 3.0)}
        return SimpleNamespace(exponents=laws)

    monkeypatch.setattr("analysis.envelope.fit", envelope)
    return asked


def test_approaches_and_their_reasons(quick: list[bool]) -> None:
    table = studies.isoflop(0, noise=0.001)
    out: Any = approaches.side_by_side(table, 1e14, law=fitted(), resamples=0)
    assert quick == [False, True]
    assert list(out.index) == ["1 envelope", "1 hull", "2 parabola", "2 akima", "2 surface", "3 surface"]
    assert out.loc["1 hull", "params"] == pytest.approx(2 * out.loc["1 envelope", "params"])
    assert out.attrs["budget"] == 1e14
    sizes = out["params"].dropna()
    assert out.attrs["disagreement"] == pytest.approx(sizes.max() / sizes.min())
    third = out.loc["3 surface"]
    _E, A, B, alpha, beta = (fitted().params[name] for name in ("E", "A", "B", "alpha", "beta"))
    best = (alpha * A / (beta * B)) ** (1 / (alpha + beta)) * (1e14 / 6) ** (beta / (alpha + beta))
    assert third["params"] == pytest.approx(best, rel=1e-3)
    assert third["tokens_per_param"] == pytest.approx(third["tokens"] / third["params"])
    assert (third["a"], third["b"], third["points"]) == pytest.approx(
        (fitted().derived["a"], fitted().derived["b"], 20)
    )
    assert np.isnan(third["a_low"])
    largest = approaches.side_by_side(table, law=fitted(), resamples=0)
    assert largest.attrs["budget"] == table["flops"].max()


def test_the_third_approach_needs_three_sizes_and_a_run_more_than_constants(
    quick: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    del quick
    table = studies.isoflop(0, noise=0.001)

    def fit(*_: Any, **options: Any) -> LawFit:
        assert options == {"form": SURFACE, "resamples": 0, "seed": 5, "loss": "squared"}
        raise ValueError("asked for a fit")

    monkeypatch.setattr(approaches, "fit_law", fit)

    def reason(part: pd.DataFrame) -> str:
        out: Any = approaches.side_by_side(part, resamples=0, seed=5, loss="squared")
        return str(out["reason"].iloc[-1])

    few = reason(table.iloc[[0, 3, 6, 9, 12]])
    assert few == "5 runs of 5 sizes; 5 constants need at least 6 runs of 3 sizes"
    assert reason(table.iloc[[0, 3, 6, 9, 12, 15]]) == "asked for a fit"
    assert reason(table.assign(size_group=np.arange(20) % 2)).startswith("20 runs of 2 sizes")
    assert reason(table.assign(size_group=np.arange(20) % 3)) == "asked for a fit"
    repeated = table.assign(unique_tokens=table["tokens"] / 8)
    assert reason(repeated) not in ("", "asked for a fit")  # the law knows of no repeats


def test_an_exponent_that_is_not_identified_stands_in_no_table(quick: list[bool]) -> None:
    del quick
    lost = replace(fitted())
    lost.__dict__["identified"] = {**fitted().identified, "a": Identified(False, "why")}
    out: Any = approaches.side_by_side(studies.isoflop(0, noise=0.001), law=lost, resamples=0)
    assert out.loc["3 surface", "reason"] == "a is not identified: why"
    assert np.isnan(out.loc["3 surface", "params"])


def test_laws_of_ones_own_stand_beside_the_others(quick: list[bool]) -> None:
    """A form that has no name among FORMS, given with its fit or as an option."""
    del quick
    table = studies.isoflop(0, noise=0.001)
    mine = replace(SURFACE, name="mine")
    own = replace(fitted(), form=mine)
    own.__dict__["identified"] = fitted().identified
    named: Any = approaches.side_by_side(table, resamples=0, law=own)
    assert named.index[-1] == "3 mine"
    assert named["reason"].iloc[-1] == ""
    few: Any = approaches.side_by_side(table.head(5), resamples=0, form=mine)
    assert few["reason"].iloc[-1].startswith("5 runs")
    with pytest.raises(ValueError, match="form='theirs' is not known"):
        approaches.side_by_side(table, resamples=0, form="theirs")


def test_approach_two_rests_on_three_minima(quick: list[bool]) -> None:
    del quick
    table = studies.isoflop(0, noise=0.0002)
    few: Any = approaches.side_by_side(table[table["flops"] < 2e12], law=fitted(), resamples=0)
    assert few.loc["2 parabola", "reason"].startswith("2 budgets with a best size inside the sizes swept")
    three: Any = approaches.side_by_side(table[table["flops"] < 5e12], law=fitted(), resamples=0)
    assert three.loc["2 parabola", "reason"] == ""


def test_criteria_are_weighed() -> None:
    np.testing.assert_allclose(comparison.behind([3.0, 1.0, np.inf]), [2.0, 0.0, np.inf])
    np.testing.assert_array_equal(comparison.behind([np.inf, np.inf]), [0.0, 0.0])
    expected = np.exp([-1.0, 0.0, -2.0])
    np.testing.assert_allclose(comparison.weights([3.0, 1.0, 5.0]), expected / expected.sum())
    np.testing.assert_allclose(comparison.weights([np.inf, np.inf]), [0.5, 0.5])
    np.testing.assert_allclose(comparison.weights([np.inf, 4.0]), [0.0, 1.0])


def sized(names: tuple[str, ...], inputs: Any, **extra: Any) -> Any:
    data = SimpleNamespace(inputs=np.array(inputs, dtype=float), extra={k: np.array(v) for k, v in extra.items()})
    return SimpleNamespace(form=SimpleNamespace(inputs=names), data=data)


def test_how_large_runs_are() -> None:
    size = comparison.size_of
    np.testing.assert_array_equal(size(sized(("params",), [[1, 2]], flops=[7.0, 8.0])), [7, 8])
    np.testing.assert_array_equal(size(sized(("params", "tokens"), [[1, 2], [3, 4]])), [3, 8])
    np.testing.assert_array_equal(size(sized(("lr",), [[9, 9]], params_active=[2.0, 3.0], tokens=[5.0, 7.0])), [10, 21])
    np.testing.assert_array_equal(size(sized(("params", "lr"), [[1, 2], [9, 9]])), [1, 2])
    np.testing.assert_array_equal(size(sized(("tokens", "lr"), [[1, 2], [9, 9]])), [1, 2])
    np.testing.assert_array_equal(size(sized(("loss",), [[2.0, 4.0]])), [0.5, 0.25])
    np.testing.assert_array_equal(size(sized(("lr", "batch"), [[1, 2], [3, 4]])), [3, 8])
    both = sized(("lr",), [[9, 9]], params=[2.0, 3.0], params_active=[1.0, 1.0])
    np.testing.assert_array_equal(size(both), [2, 3])


def test_the_largest_fifth_is_predicted_from_the_others() -> None:
    table = studies.isoflop(0, noise=0.004)
    fit = fit_law(table, loss="squared", resamples=0, starts=2, tie={"beta": "alpha"})
    error = comparison.held_out_error(fit)
    largest = table["flops"] >= np.quantile(table["flops"], 0.8) * (1 - 1e-9)
    others = fit_law(table[~largest], loss="squared", resamples=0, tie={"beta": "alpha"})
    value = others.predict(table[largest])
    assert error == pytest.approx(float(np.abs(value / table["loss"][largest] - 1).mean()), rel=1e-6)
    half = comparison.held_out_error(fit, 0.5)
    lower = table["flops"] < np.quantile(table["flops"], 0.5) * (1 - 1e-9)
    others = fit_law(table[lower], loss="squared", resamples=0, tie={"beta": "alpha"})
    assert half == pytest.approx(
        float(np.abs(others.predict(table[~lower]) / table["loss"][~lower] - 1).mean()), rel=1e-6
    )
    few = fit_law(table.iloc[[0, 3, 6, 9, 12, 18]], loss="squared", resamples=0)
    assert np.isnan(comparison.held_out_error(few))  # five rows are left for five constants
    held = fit_law(table, loss="squared", resamples=0, fix={"E": 1.9}, plain=True)
    others = fit_law(table[~largest], loss="squared", resamples=0, fix={"E": 1.9}, plain=True)
    value = others.predict(table[largest])
    expected = float(np.abs(value / table["loss"][largest] - 1).mean())
    assert comparison.held_out_error(held) == pytest.approx(expected, rel=1e-6)


def test_forms_are_ranked_by_their_small_sample_criterion() -> None:
    table = studies.isoflop(0, noise=0.004)
    fits = [fit_law(table, form, loss="squared", resamples=0) for form in ("frontier_no_floor", "compute")]
    for fit in fits:
        fit.__dict__["identified"] = dict.fromkeys(fit.names, SimpleNamespace(identified=True, limit=None, side=None))
    found = comparison.compare(fits)
    assert list(found.columns) == [
        "rank", "aicc", "delta_aicc", "weight", "aic", "bic", "k", "nobs", "objective", "error", "warning",
    ]  # fmt: skip
    order = sorted(fits, key=lambda fit: fit.aicc)
    assert list(found.index) == [fit.form.name for fit in order]
    np.testing.assert_array_equal(found["rank"], [0, 1])
    np.testing.assert_allclose(found["delta_aicc"], [0.0, order[1].aicc - order[0].aicc])
    np.testing.assert_allclose(found["weight"], comparison.weights([fit.aicc for fit in order]))
    np.testing.assert_array_equal(found["k"], [fit.free for fit in order])
    np.testing.assert_array_equal(found["nobs"], [20, 20])
    np.testing.assert_allclose(found["objective"], [fit.objective for fit in order])
    with pytest.raises(ValueError, match="at least one fit"):
        comparison.compare([])
    with pytest.raises(ValueError, match="was fitted to 19 rows"):
        comparison.compare([fits[0], fit_law(table.iloc[:19], "compute", loss="squared", resamples=0)])
    other = replace(fits[1], data=replace(fits[1].data, target=fits[1].data.target * 1.01))
    with pytest.raises(ValueError, match="to others"):
        comparison.compare([fits[0], other])
    with pytest.raises(ValueError, match="differ in whether residuals are logs"):
        comparison.compare([fits[0], fit_law(table, "compute", loss="squared", resamples=0, plain=True)])
