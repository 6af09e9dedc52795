"""Backtests: which budgets are held out and fitted, and errors by hand."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.approaches import frontier, valleys
from analysis.backtest import text
from analysis.diagnostics import backtest
from analysis.estimation import fit_problem, multistart, objectives
from analysis.inputs.dataset import Rows
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.study_result import Cut
from tests.analysis import studies

LAW = (1.7, 400.0, 900.0, 0.34, 0.28)
RATIOS = (10, 30, 90, 270, 810)


def rows(*budgets: float, ratios: Any = RATIOS, noise: float = 0.0) -> Rows:
    return studies.as_rows(studies.isoflop(0, law=LAW, budgets=budgets, ratios=ratios, noise=noise))


FOUR = rows(1e17, 1e18, 1e19, 1e20, noise=0.001)


def test_an_exact_law_is_foreseen_exactly() -> None:
    exact = rows(1e17, 1e18, 1e19, 1e20)
    found = backtest.backtest(exact, objectives.Squared())
    assert found is not None
    assert found.held_out_budget == 1e20
    assert found.train_budgets == pytest.approx((1e17, 1e18, 1e19))
    assert found.extrapolation_factor == pytest.approx(10.0)
    assert found.approach == "surface"
    assert set(found.by_approach) == {"surface", "valleys"}
    for run, n, d, loss in zip(found.runs, exact.params[-5:], exact.tokens[-5:], exact.loss[-5:], strict=True):
        assert (run.params, run.tokens, run.observed) == (n, d, loss)
        assert run.predicted == pytest.approx(loss, rel=1e-5)
    held = valleys.fit(exact.take(exact.budget == 3), resamples=0, seed=0)
    assert found.observed == pytest.approx(float(held.loss[0]))
    assert found.predicted == pytest.approx(found.observed, rel=1e-6), "a parabola's bias is no error of the law"
    assert found.relative_error == pytest.approx(0.0, abs=1e-6)
    assert found.reason == ""
    assert (found.recommended_factor, found.covers) == (None, True)


def test_errors_are_predicted_over_observed() -> None:
    found = backtest.backtest(FOUR, objectives.Squared())
    assert found is not None
    errors = np.array([run.predicted / run.observed - 1 for run in found.runs])
    np.testing.assert_allclose([run.relative_error for run in found.runs], errors)
    assert found.mean_abs_relative_error == pytest.approx(np.abs(errors).mean())
    assert found.mean_relative_error == pytest.approx(errors.mean())
    assert found.one_sided == bool((errors > 0).all() or (errors < 0).all())
    below = FOUR.take(FOUR.budget <= 2)
    p = fit_problem.problem(SURFACE, (below.params, below.tokens), below.loss, objectives.Squared())
    theta = multistart.fit_point(p).theta
    top = FOUR.take(FOUR.budget == 3)
    x = np.log(np.stack((top.params, top.tokens))) - p.centres[:, None]
    predicted = np.exp(SURFACE.log_value(theta[None], x)[0])
    np.testing.assert_allclose([run.predicted for run in found.runs], predicted, rtol=1e-6)
    assert [run.key for run in found.runs] == list(top.keys)
    law = frontier.fit(below, valleys.fit(below, resamples=0, seed=0))
    assert isinstance(law, frontier.FrontierFit)
    held = valleys.fit(top, resamples=0, seed=0)
    assert found.by_approach["valleys"].predicted == pytest.approx(law.predict(float(held.flops[0]))[0])


def test_how_far_a_right_law_may_be_off_follows_from_its_runs_alone() -> None:
    """By hand for least squares: t of 1 % at the lowest held-out run, with the noise of one run."""
    found = backtest.backtest(FOUR, objectives.Squared())
    assert found is not None
    below, top = FOUR.take(FOUR.budget <= 2), FOUR.take(FOUR.budget == 3)
    p = fit_problem.problem(SURFACE, (below.params, below.tokens), below.loss, objectives.Squared())
    theta = multistart.fit_point(p).theta[None]
    slopes = SURFACE.jacobian(theta, p.x)[0]
    variance = float(((SURFACE.log_value(theta, p.x)[0] - p.y) ** 2).sum()) / (len(below) - 5)
    best = np.argmin(top.loss)
    at = SURFACE.jacobian(theta, np.log([[top.params[best]], [top.tokens[best]]]) - p.centres[:, None])[0, 0]
    spread = np.sqrt(variance * (at @ np.linalg.inv(slopes.T @ slopes) @ at + 1.0))
    assert found.reach == pytest.approx(np.expm1(stats.t.ppf(0.995, len(below) - 5) * spread), rel=1e-3)
    with_frontier = backtest.backtest(FOUR, objectives.Squared(), of="frontier")
    assert with_frontier is not None and with_frontier.reach is None


def test_right_laws_stay_within_their_reach() -> None:
    inside = []
    for seed in range(12):
        table = studies.isoflop(seed, law=LAW, budgets=(1e17, 1e18, 1e19, 1e20), ratios=RATIOS, noise=0.003)
        found = backtest.backtest(studies.as_rows(table), objectives.Huber(), factor=10.0, of="surface")
        assert found is not None and found.relative_error is not None and found.reach is not None
        inside.append(abs(np.log1p(found.relative_error)) <= np.log1p(found.reach))
    assert sum(inside) >= 11
    table["loss"] *= np.where(table["flops"] > 5e19, 1.06, 1.0)
    found = backtest.backtest(studies.as_rows(table), objectives.Huber(), factor=10.0, of="surface")
    assert found is not None and found.relative_error is not None and found.reach is not None
    assert abs(found.relative_error) > found.reach, "what no noise explains is no chance"


@pytest.mark.parametrize(("shift", "sided"), [([0.02] * 5, True), ([-0.02] * 5, True), ([0.02] * 4 + [-0.02], False)])
def test_misses_on_one_side(shift: list[float], sided: bool) -> None:
    moved = FOUR.replaced(loss=FOUR.loss * np.exp(np.where(FOUR.budget == 3, np.resize(shift, 20), 0.0)))
    found = backtest.backtest(moved, objectives.Squared())
    assert found is not None
    assert found.one_sided == sided
    keep = (FOUR.budget < 3) | (np.arange(20) % 5 < 4)
    four = backtest.backtest(moved.take(keep), objectives.Squared())
    assert four is not None
    assert len(four.runs) == 4
    assert not four.one_sided, "four runs are too few to say so"


def test_three_budgets_of_two_runs_are_needed() -> None:
    assert backtest.backtest(rows(1e18, 1e19), objectives.Squared()) is None
    three = backtest.backtest(rows(1e18, 1e19, 1e20), objectives.Squared())
    assert three is not None
    assert len(three.train_budgets) == 2
    single = FOUR.take((FOUR.budget < 3) | (np.arange(20) == 17))
    found = backtest.backtest(single, objectives.Squared())
    assert found is not None
    assert found.held_out_budget == pytest.approx(1e19), "of a single run nothing is held out"
    pair = FOUR.take((FOUR.budget < 3) | np.isin(np.arange(20), (16, 18)))
    found = backtest.backtest(pair, objectives.Squared())
    assert found is not None
    assert found.held_out_budget == pytest.approx(1e20)
    assert found.observed == FOUR.loss[[16, 18]].min(), "two runs have no valley: the lowest"


def test_budgets_near_the_largest_test_nothing() -> None:
    assert backtest.backtest(rows(1e20, 1.2e20, 1.45e20, 1.7e20), objectives.Squared()) is None
    found = backtest.backtest(rows(1e18, 1e19, 7e19, 1e20), objectives.Squared())
    assert found is not None
    assert found.extrapolation_factor == pytest.approx(10.0)
    found = backtest.backtest(rows(1e18, 1e19, 6.6e19, 1e20), objectives.Squared())
    assert found is not None
    assert found.extrapolation_factor == pytest.approx(1 / 0.66)


SIX = rows(1e15, 1e16, 1e17, 1e18, 1e19, 1e20, noise=0.0005)


@pytest.mark.parametrize(
    ("factor", "far", "covers"),
    [
        (None, 10.0, True), (10.0, 10.0, True), (12.0, 10.0, True), (13.0, 100.0, True), (100.0, 100.0, True),
        (1200.0, 1000.0, True), (1e4, 1e4, True), (1e6, 1e4, False),
    ],
)  # fmt: skip
def test_a_test_reaches_as_far_as_the_recommendation(factor: float | None, far: float, covers: bool) -> None:
    found = backtest.backtest(SIX, objectives.Squared(), factor=factor)
    assert found is not None
    assert found.extrapolation_factor == pytest.approx(far)
    assert (found.recommended_factor, found.covers) == (factor, covers)


def test_tests_are_ordered_by_runs_then_by_reach() -> None:
    order = backtest._order
    assert order(10.0, None, 8) < order(10.0, None, 7)
    assert order(10.0, None, 20) < order(100.0, None, 20)
    assert order(8.0, 10.0, 20) < order(9.0, 10.0, 20) < order(7.9, 10.0, 20) < order(5.0, 10.0, 20)
    assert order(7.9, 10.0, 8) < order(8.0, 10.0, 7)
    assert order(8.0, 10.0, 8)[0] is False
    assert order(8.0, 10.0, 7)[0] is True


def test_few_runs_are_fitted_by_the_frontier_alone() -> None:
    sizes = rows(1e18, 1e19, 1e20, ratios=(10, 90))
    assert backtest.backtest(sizes, objectives.Squared()) is not None
    found = backtest.backtest(sizes, objectives.Squared())
    assert found is not None
    assert (found.approach, found.runs) == ("valleys", ())
    assert (found.mean_abs_relative_error, found.mean_relative_error, found.one_sided) == (None, None, False)
    assert found.predicted == found.by_approach["valleys"].predicted


def test_another_law_is_judged_at_the_best_run() -> None:
    found = backtest.backtest(FOUR, objectives.Squared(), "kaplan_floor")
    assert found is not None
    assert found.approach == "law"
    assert set(found.by_approach) == {"law", "valleys"}
    best = min(found.runs, key=lambda run: run.observed)
    assert (found.predicted, found.observed) == (best.predicted, best.observed)
    assert found.relative_error == best.relative_error
    fixed = backtest.backtest(FOUR, objectives.Squared(), fix={"alpha": 0.2}, tie={"beta": "alpha"})
    free = backtest.backtest(FOUR, objectives.Squared())
    assert fixed is not None
    assert free is not None
    assert abs(fixed.runs[0].relative_error) > abs(free.runs[0].relative_error)


def over_trained() -> Rows:
    """Return an exact law's runs of which the largest budget has two, both far from its best size."""
    table = studies.isoflop(0, law=LAW, budgets=(1e16, 1e17, 1e18, 1e19), ratios=RATIOS)
    params = np.array([2e6, 4e6])
    more = pd.DataFrame({"params": params, "tokens": 1e20 / 6 / params, "flops": 1e20, "flops_budget": 1e20})
    more["loss"] = studies.loss(LAW, more["params"], more["tokens"])
    return studies.as_rows(pd.concat([table, more], ignore_index=True))


@pytest.mark.parametrize("form", ["chinchilla", "chinchilla_interaction"])
def test_a_law_is_held_against_the_runs_that_there_are(form: str) -> None:
    """The best loss that a budget could have bought is none of a budget whose runs are all far from its best size."""
    found = backtest.backtest(over_trained(), objectives.Squared(), form)
    assert found is not None
    assert found.held_out_budget == pytest.approx(1e20)
    assert [run.relative_error for run in found.runs] == pytest.approx([0.0, 0.0], abs=1e-4)
    best = min(found.runs, key=lambda run: run.observed)
    assert (found.predicted, found.observed, found.relative_error) == (
        best.predicted, best.observed, best.relative_error,
    )  # fmt: skip
    assert "valleys" not in found.by_approach, "no run shows the lowest loss, which is what the frontier says"
    front = backtest.backtest(over_trained(), objectives.Squared(), form, of="frontier")
    assert front is not None
    assert (front.approach, front.predicted, front.relative_error, front.runs) == ("", None, None, ())
    assert front.reason.startswith("that of the frontier needs a minimum at the largest budget")


def test_the_error_is_that_of_what_the_loss_is_from() -> None:
    by = {of: backtest.backtest(SIX, objectives.Squared(), of=of, factor=10.0) for of in ("surface", "frontier", "")}
    surface, front, none = (by[of] for of in ("surface", "frontier", ""))
    assert surface is not None and front is not None and none is not None
    assert (surface.approach, front.approach, none.approach) == ("surface", "valleys", "")
    assert front.by_approach == surface.by_approach == none.by_approach
    for found in (surface, front):
        own = found.by_approach[found.approach]
        assert (found.predicted, found.observed, found.relative_error) == (
            own.predicted, own.observed, own.relative_error,
        )  # fmt: skip
    assert surface.relative_error != front.relative_error
    assert len(surface.runs) == 5
    for other in (front, none):
        assert (other.runs, other.mean_relative_error, other.one_sided) == ((), None, False), "the surface's alone"
    assert (none.predicted, none.relative_error) == (None, None)
    assert none.reason == "the recommendation is of sizes and says no loss"
    law = backtest.backtest(SIX, objectives.Squared(), "kaplan_floor", of="law", factor=10.0)
    assert law is not None
    assert (law.approach, len(law.runs)) == ("law", 5)


def test_the_frontier_that_is_recommended_has_a_floor_and_so_has_its_test() -> None:
    """Three minima hold no floor: that law is too low far out, and no plan states its loss."""
    found = backtest.backtest(SIX, objectives.Squared(), of="frontier", factor=1000.0)
    assert found is not None
    assert len(found.train_budgets) == 4, "the farthest test of three budgets reaches 1000 times, and has no floor"
    assert not found.covers
    four = backtest.backtest(FOUR, objectives.Squared(), of="frontier")
    assert four is not None
    assert (four.approach, set(four.by_approach)) == ("", {"surface"})
    assert "four at budgets far enough below it" in four.reason
    bare = backtest.backtest(FOUR, objectives.Squared())
    assert bare is not None
    assert "valleys" in bare.by_approach


def test_too_few_runs_for_the_law_are_said() -> None:
    sizes = rows(1e18, 1e19, 1e20, ratios=(10, 90))
    found = backtest.backtest(sizes, objectives.Squared(), of="surface")
    assert found is not None
    assert (found.approach, found.relative_error) == ("", None)
    assert found.reason == "the budgets far enough below the largest have too few runs for the surface"


def test_rolling_cuts_by_hand() -> None:
    found = backtest.rolling(SIX, objectives.Squared())
    assert [(round(np.log10(cut.flops)), cut.rows) for cut in found] == [(16, 10), (17, 15), (18, 20), (19, 25)]
    for cut in found:
        below, above = SIX.take(SIX.flops <= cut.flops), SIX.take(SIX.flops > cut.flops)
        p = fit_problem.problem(SURFACE, (below.params, below.tokens), below.loss, objectives.Squared())
        point = multistart.fit_point(p)
        x = np.log(np.stack((above.params, above.tokens))) - p.centres[:, None]
        errors = np.exp(SURFACE.log_value(point.theta[None], x)[0]) / above.loss - 1
        order = np.argsort(above.flops, kind="stable")
        np.testing.assert_allclose([c for c, _ in cut.runs], above.flops[order])
        np.testing.assert_allclose([e for _, e in cut.runs], errors[order], atol=1e-9)
        assert cut.mean_abs_relative_error == pytest.approx(np.abs(errors).mean(), rel=1e-5)
        alpha, beta = point.constants[3:]
        assert cut.a == pytest.approx(beta / (alpha + beta))
    two = backtest.rolling(SIX, objectives.Squared(), most=2)
    assert [cut.rows for cut in two] == [25], "of the first and the last the first has too few runs"
    kaplan = backtest.rolling(SIX, objectives.Squared(), form="chinchilla_no_floor")
    assert len(kaplan) == 4
    for one in (backtest.backtest, backtest.rolling):
        given = inspect.signature(one).parameters
        assert given["form"].default == "chinchilla"
    assert inspect.signature(backtest.rolling).parameters["most"].default == 8


def test_cuts_need_runs_below_and_room_above() -> None:
    law = backtest._Law(SURFACE, objectives.Squared(), {}, {})
    assert backtest._cut(FOUR, 1e20, law) is None, "nothing above"
    assert backtest._cut(FOUR, 1e17, law) is None, "five runs below"
    assert backtest._cut(FOUR, 1.01e18, law) is not None
    near = rows(1e18, 1e19, 1e20, 1.45e20)
    assert backtest._cut(near, 1.01e20, law) is None
    assert backtest._cut(rows(1e18, 1e19, 1e20, 1.53e20), 1.01e20, law) is not None
    eight = rows(1e17, 1e18, 1e19, ratios=(10, 30, 90, 270))
    assert backtest._cut(eight, 1.01e18, law) is not None
    seven = eight.take(np.arange(12) != 2)
    assert backtest._cut(seven, 1.01e18, law) is None
    farseer = backtest._Law(FORMS["farseer"], objectives.Squared(), {}, {})
    assert backtest._cut(FOUR, 1.01e18, farseer) is None, "nine constants need eleven runs"
    assert backtest._cut(FOUR, 1.01e19, farseer) is not None


def test_runs_without_budgets_are_cut_at_quantiles() -> None:
    generator = np.random.default_rng(0)
    flops = np.exp(np.linspace(np.log(1e17), np.log(1e20), 40))
    ratio = np.exp(generator.uniform(np.log(10), np.log(800), 40))
    params = np.sqrt(flops / 6 / ratio)
    table = pd.DataFrame({"params": params, "tokens": flops / 6 / params, "flops": flops})
    cloud = studies.as_rows(table.assign(loss=studies.loss(LAW, table["params"], table["tokens"])))
    found = backtest.rolling(cloud, objectives.Squared(), most=4)
    quantiles = np.quantile(flops, np.linspace(0.3, 1.0, 5))[:-1]
    want = [flops[flops <= q * 1.01].max() for q in quantiles]
    np.testing.assert_allclose([cut.flops for cut in found], want)


def test_the_table_of_cuts() -> None:
    def cut(a: float | None) -> Cut:
        return Cut(1e18, 12, a, 0.0123, ((2e18, 0.01), (1e19, -0.025)))

    lines = text([cut(0.5), cut(0.531), cut(None)]).splitlines()
    assert " ".join(lines[0].split()) == "fitted up to runs exponent a factor runs above mean |error| largest run"
    assert lines[1].split() == ["1e18", "FLOPs", "12", "0.500", "10x", "2", "1.2", "%", "-2.50", "%"]
    assert lines[3].split()[3] == "-"
    assert lines[-1] == "a lies between 0.500 and 0.531 over the cuts: it drifts, so extrapolate with care"
    assert text([cut(0.5), cut(0.519)]).splitlines()[-1] == "a lies between 0.500 and 0.519 over the cuts"
    assert len(text([cut(0.5)]).splitlines()) == 2
