"""Intervals hold: sign and centre of the errors drawn, what rows share, and the estimate within its own interval."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from analysis.approaches import valleys
from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference import error_draws, intervals, profile_likelihood, resampling
from analysis.inference.fit_law import fit_law
from benchmarks import analysis_intervals
from tests.analysis import studies

A = 5
"""The row of the exponent a among the intervals."""
SIX = tuple(np.geomspace(1e12, 1e15, 6))
EVEN = (0.1, 0.3, 1.0, 3.0, 10.0)
MIDDLE = {"params": [1e6], "tokens": [1e7]}


def spoilt(seed: int, *, few: int = 3) -> Any:
    """Return 25 runs with errors of 0.3 %, a few of which went badly: 3 to 8 % too high."""
    table = studies.isoflop(seed, noise=0.003, budgets=(*studies.BUDGETS, 4e13))
    generator = np.random.default_rng([seed, 7])
    rows = generator.choice(len(table), few, replace=False)
    table.loc[rows, "loss"] *= np.exp(generator.uniform(0.03, 0.08, few))
    return table


@pytest.mark.parametrize(
    "loss", [objectives.Huber(1e-3), objectives.Squared(), objectives.Absolute(), objectives.StudentT()]
)
def test_residuals_are_centred_where_their_pulls_sum_to_zero(loss: objectives.Loss) -> None:
    residual = np.concatenate((0.003 * np.random.default_rng(0).normal(size=22), [0.03, 0.05, 0.08]))
    middle = objectives.location(loss, residual)
    pulls = loss.summed((residual - middle)[None], None)[1]
    assert abs(pulls.sum()) < 1e-6 * np.abs(pulls).sum()
    squared = isinstance(loss, objectives.Squared)
    assert (abs(middle - residual.mean()) < 1e-12) == squared
    assert squared or middle < 0.002


def test_residuals_are_observed_less_fitted_and_drawn_with_that_sign() -> None:
    fit = fit_law(spoilt(0), resamples=0)
    residual = fit_problem.residuals(fit.problem, fit.point.theta[None])[0]
    np.testing.assert_allclose(residual, np.log(fit.observed / fit.fittedvalues), atol=1e-12)
    noise = resampling.redrawn(residual, fit.df_resid, 400, 0)
    assert ((residual - residual.mean()) ** 3).mean() > 0 < ((noise - noise.mean()) ** 3).mean()


def test_runs_that_went_badly_on_one_side_leave_the_interval_around_the_truth() -> None:
    truth = float(studies.loss(studies.LAW, 1e6, 1e7))
    held = 0
    for seed in range(8):
        line = fit_law(spoilt(seed), resamples=100, seed=seed).get_prediction(MIDDLE).summary_frame().iloc[0]
        assert line["mean_ci_lower"] <= line["mean"] <= line["mean_ci_upper"]
        held += line["mean_ci_lower"] <= truth <= line["mean_ci_upper"]
    assert held >= 7  # with the signs of the errors turned six of these eight hold it


def curves(seed: int, runs: int = 20, points: int = 6) -> Any:
    """Return the checkpoints of runs: each run's own error of 0.5 %, a tenth of that from point to point."""
    generator = np.random.default_rng(seed)
    size = np.repeat(np.geomspace(1e6, 1e8, runs), points)
    tokens = size * np.tile(np.geomspace(5, 200, points), runs)
    noise = np.repeat(0.005 * generator.normal(size=runs), points) + 0.0005 * generator.normal(size=len(size))
    value = studies.loss(studies.LAW, size, tokens) * np.exp(noise)
    name = np.repeat([f"run{i}" for i in range(runs)], points)
    return pd.DataFrame({"run": name, "params": size, "tokens": tokens, "flops": 6 * size * tokens, "loss": value})


def test_rows_of_one_run_share_its_error_by_themselves() -> None:
    held = 0
    for seed in range(6):
        fit = fit_law(curves(seed), loss="squared", resamples=40, seed=seed)
        assert fit.plan.shared == "runs"
        low, high = fit.conf_int().to_numpy()[A]
        held += low <= 0.30 / 0.63 <= high
    assert held >= 5  # as independent rows, cluster=residuals, four of these six hold it


def test_few_groups_are_not_drawn_as_wholes_and_are_a_finding() -> None:
    few = curves(0, runs=4)
    with pytest.raises(ValueError, match="cluster=runs: there are 4 runs, and at least 8 are needed"):
        fit_law(few, cluster="runs")
    fit = fit_law(few, resamples=60)
    assert {"few_clusters", "clustered_rows"} & {check.code for check in fit.check()}
    wide, narrow = (f.conf_int().to_numpy()[A] for f in (fit, fit_law(few, cluster="residuals", resamples=60)))
    assert fit.identified["a"].identified is False or wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])


def test_seeds_need_repeats() -> None:
    with pytest.raises(ValueError, match="no setting was run twice"):
        fit_law(studies.isoflop(0, noise=0.005), cluster="seeds", resamples=20)


def test_two_seeds_show_the_whole_of_their_noise() -> None:
    both = pd.concat([studies.isoflop(1, noise=0.005), studies.isoflop(2, noise=0.005)])
    seeds = fit_law(both, loss="squared", cluster="seeds", resamples=300).conf_int().to_numpy()[A]
    delta = fit_law(both, loss="squared", resamples=0).conf_int(method="delta").to_numpy()[A]
    assert 0.75 < (seeds[1] - seeds[0]) / (delta[1] - delta[0]) < 1.4  # sqrt(1/2) of it without the factor of two seeds


def test_quantiles_are_students_at_any_confidence() -> None:
    residual = np.random.default_rng(0).normal(size=10)
    scales = resampling.student_scales(5, 20_000, 0)
    sums = resampling.redrawn(residual, 5, 20_000, 0).sum(axis=1) * scales
    for confidence in (0.5, 0.95, 0.99):
        low, high = resampling.percentile(sums, confidence) or (np.nan, np.nan)
        reach = float(np.sqrt(10 / 5) * student.ppf(0.5 + confidence / 2, 5))
        assert abs((high - low) / (2 * reach * residual.std() * np.sqrt(10)) - 1) < 0.08


def test_draws_without_a_value_widen_the_interval_until_there_is_none() -> None:
    draws = np.random.default_rng(0).normal(size=2000)
    whole = resampling.percentile(draws) or (np.nan, np.nan)
    draws[:40] = np.nan
    some = resampling.percentile(draws) or (np.nan, np.nan)
    assert some[0] < whole[0] < whole[1] < some[1]
    draws[:110] = np.nan
    assert resampling.percentile(draws) is None


def test_draws_without_a_value_are_counted_and_said() -> None:
    fit = fit_law(studies.isoflop(0, noise=0.003), resamples=100)
    lost = fit.thetas.copy()
    lost[:3] = np.nan
    found = replace(fit, thetas=lost)
    assert found.undefined["E"] == pytest.approx(0.03)
    assert "undefined_draws" in {check.code for check in found.check()}
    assert "undefined_draws" not in {check.code for check in fit.check()}
    assert found.record()["undefined_draws"]["E"] == pytest.approx(0.03)


@given(st.floats(-5, 5), st.floats(0.01, 3), st.floats(0.5, 0.99), st.booleans())
@settings(max_examples=40, deadline=None)
def test_an_interval_of_draws_holds_its_estimate(shift: float, spread: float, confidence: float, logs: bool) -> None:
    draws = np.exp(shift + spread * np.random.default_rng(0).normal(size=99))
    for estimate in (1e-3, 1.0, 40.0):
        low, high = resampling.interval(draws, estimate, confidence, logs) or (np.nan, np.nan)
        assert low <= estimate <= high
        middle = resampling.percentile(draws, confidence) or (np.nan, np.nan)
        if resampling.biased(draws, estimate, confidence):
            assert (low, high) != middle
        else:
            assert (low, high) == pytest.approx(middle, rel=0, abs=1e-3 * (middle[1] - middle[0]))


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("end", [0, 1])
def test_an_interval_grows_steadily_as_its_estimate_leaves_the_draws(end: int, logs: bool) -> None:
    draws = np.exp(1.0 + 0.3 * np.random.default_rng(0).normal(size=99))
    middle = resampling.percentile(draws) or (np.nan, np.nan)
    width, way = middle[1] - middle[0], 2 * end - 1
    at = [middle[end] + way * width * step for step in (0.0, 1e-15, 1e-9, *np.linspace(1e-4, 0.05, 500))]
    found = np.array([resampling.interval(draws, value, logs=logs) for value in at])
    assert tuple(found[0]) == middle
    steps = way * np.diff(found[:, end])
    assert (steps > -1e-12 * width).all() and steps[:2].max() < 1e-6 * width and steps.max() < 0.05 * width
    np.testing.assert_array_equal(found[:, 1 - end], middle[1 - end])
    far = middle[1 - end]
    assert found[-1, end] == pytest.approx(at[-1] ** 2 / far if logs else 2 * at[-1] - far)
    assert not resampling.biased(draws, at[1]) and resampling.biased(draws, at[3])


def test_no_estimate_lies_outside_the_interval_of_any_of_ten_thousand_sets_of_draws() -> None:
    generator = np.random.default_rng(0)
    size = 10.0 ** generator.uniform(-150, 150, 10_000)
    shift, lost = 10.0 * generator.normal(size=10_000), generator.choice([0, 0, 0, 1, 5], 10_000)
    for number in range(10_000):
        draws = np.exp(shift[number] * generator.normal(size=21) + 3.0 * generator.normal()) * size[number]
        draws[: lost[number]] = np.nan
        found = resampling.interval(draws, float(size[number]), 0.8, logs=bool(number % 2))
        assert found is None or found[0] <= size[number] <= found[1]


def test_a_limit_of_what_is_not_identified_holds_the_estimate() -> None:
    fit = fit_law(studies.isoflop(0, noise=0.003), resamples=100)
    floor = fit.form.names.index("E")
    natural = fit.form.natural(fit.thetas, fit.problem.centres)
    natural[:, floor] *= 0.5
    natural[:20, floor] = 1e-9
    found = replace(fit, thetas=fit.form.internal(natural, fit.problem.centres))
    assert found.identified["E"].side == "upper"
    low, high = found.conf_int().to_numpy()[floor]
    assert low <= fit.params["E"] <= high


def test_what_is_drawn_of_a_groups_rows_is_not_nothing() -> None:
    fit = fit_law(pd.DataFrame(vars_of(analysis_intervals.study("grid", 50, "normal", 5))), resamples=0)
    assert fit.plan.shared == "sizes"
    around = error_draws.Around(fit.problem, fit.point, np.arange(fit.nobs))
    drawn = error_draws.shared(around, resampling.groups(fit.plan, fit.data.size, fit.data.run_numbers), 200)
    near = np.abs(drawn) < 0.03 * drawn.std()
    assert near.mean() < 0.2  # less the middle of their group, of one to three rows each, a third of them are


def vars_of(rows: Any) -> dict[str, Any]:
    return {name: getattr(rows, name) for name in ("params", "tokens", "flops", "loss")}


def test_groups_that_are_enough_to_share_errors_are_a_note() -> None:
    fit = fit_law(analysis_intervals.study("grid", 50, "normal", 5), resamples=20)
    said = next(check for check in fit.check() if check.code == "shared_errors")
    assert said.level == "note"
    assert "random effect of the model size" in said.message
    lone = fit_law(analysis_intervals.study("isoflop", 50, "normal", 5), resamples=20)
    assert "shared_errors" not in {check.code for check in lone.check()}


def test_rows_far_from_the_law_are_a_note_about_the_width() -> None:
    codes = [{check.code for check in fit_law(spoilt(1, few=few), resamples=20).check()} for few in (3, 0)]
    assert ["wild_rows" in each for each in codes] == [True, False]


def test_four_valleys_say_how_wide_that_makes_their_intervals() -> None:
    found = [
        valleys.fit(studies.as_rows(studies.isoflop(0, noise=0.001, budgets=SIX[:count])), resamples=40, seed=0)
        for count in (4, 6)
    ]
    said = [[c for c in each.block.checks if c.code == "few_valleys"] for each in found]
    assert [len(each) for each in said] == [1, 0]
    assert "2 degrees of freedom" in said[0][0].message
    assert "2.2 times as wide" in said[0][0].advice


def test_a_table_tells_a_miss_from_chance_and_from_what_findings_say() -> None:
    lines = [
        analysis_intervals.Line("a", 100, 100, held, 0.0, 1.0 - held, 1.0, 0.0, finding)
        for held, finding in ((0.95, 0.0), (0.98, 0.0), (0.85, 0.0), (0.85, 1.0))
    ]
    assert [line.verdict for line in lines] == ["", "chance", "MISS", "said"]
    low, high = analysis_intervals.wilson(0.95, 500)
    assert (low, high) == pytest.approx((0.927, 0.966), abs=1e-3)


@given(
    st.integers(0, 10_000), st.sampled_from(("isoflop", "ladder", "random")), st.integers(8, 40),
    st.sampled_from(("normal", "heavy", "one_sided", "shared")), st.sampled_from(("huber", "squared", "student_t")),
)  # fmt: skip
@settings(max_examples=4, deadline=None)
def test_no_printed_quantity_lies_outside_its_own_interval(
    seed: int, design: str, runs: int, errors: str, loss: str
) -> None:
    study = analysis_intervals.study(design, runs, errors, seed)
    assert analysis_intervals.outside(analysis_intervals.answers(study, resamples=40, loss=loss)) == []


def drifting(seed: int) -> valleys.ValleyFit:
    """Return the valleys of six budgets, in each of which tuning favours small or large sizes as it happens."""
    table = studies.isoflop(seed, noise=0.0005, law=(1.9, 90.0, 90.0, 0.32, 0.32), budgets=SIX, ratios=EVEN)
    tilts = 0.004 * np.random.default_rng([seed, 9]).normal(size=6)
    tilt = dict(zip(table["flops_budget"].unique(), tilts, strict=True))
    favour = table["flops_budget"].map(tilt) * np.log(table["params"] / np.sqrt(table["flops"] / 6))
    return valleys.fit(studies.as_rows(table.assign(loss=table["loss"] * np.exp(favour))), resamples=300, seed=seed)


def test_exponents_of_valleys_hold_the_scatter_between_budgets() -> None:
    found = [drifting(seed) for seed in range(12)]
    ends = [each.block.exponents["params"].exponent_interval or (np.nan, np.nan) for each in found]
    assert sum(low <= 0.5 <= high for low, high in ends) >= 10  # of noise within budgets alone: two of these twelve
    said = [check for each in found for check in each.block.checks if check.code == "valley_scatter"]
    assert len(said) >= 10
    assert {check.level for check in said} == {"warning"}


@pytest.mark.parametrize("cell", [("grid", 100, "heavy"), ("isoflop", 50, "normal"), ("isoflop", 100, "skewed")])
def test_exponents_of_valleys_are_held_and_no_wider_than_need_be(cell: tuple[str, int, str]) -> None:
    """Draws of minima beyond the sizes swept made intervals 1.4 to 1.6 times as wide as 95 % of estimates spread."""
    truth, estimates, ends = analysis_intervals.truths(1.0)["a"], [], []
    for seed in range(150):
        rows = analysis_intervals.study(*cell, seed)
        law = valleys.fit(rows, resamples=400, seed=seed).block.exponents.get("params")
        if law is not None and law.exponent_interval is not None:
            estimates.append(law.exponent)
            ends.append(law.exponent_interval)
    low, high = np.transpose(ends)
    assert len(ends) >= 145
    assert np.mean((low <= truth) & (truth <= high)) >= 0.91
    assert np.median(high - low) / np.subtract(*np.quantile(estimates, [0.975, 0.025])) < 1.4


def test_drift_moves_the_best_size_of_each_budget_and_not_the_lowest_loss() -> None:
    def away(errors: str) -> tuple[float, float]:
        """Return how far best sizes lie from the truth in ln N (standard deviation), and losses at most."""
        sizes, losses = [], []
        for seed in range(60):
            found = valleys.fit(analysis_intervals.study("isoflop", 200, errors, seed), resamples=0, seed=0)
            true = [analysis_intervals.truths(float(flops)) for flops in found.flops]
            sizes.append(found.params - np.log([one["params"] for one in true]))
            losses.append(found.loss / [one["loss"] for one in true] - 1.0)
        return float(np.concatenate(sizes).std()), float(np.abs(np.concatenate(losses)).max())

    (still, _), (moved, lifted) = away("normal"), away("drift")
    assert moved == pytest.approx(np.hypot(analysis_intervals.DRIFT, still), rel=0.1)
    assert lifted < 0.01


@pytest.mark.parametrize("size", [1e160, 1e308, np.inf])
def test_draws_too_large_to_square_have_no_covariance_and_no_warning(size: float) -> None:
    draws = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["E", "A"])
    draws.loc[3, "A"] = size
    fit: Any = SimpleNamespace(draws=draws, form=SimpleNamespace(names=("E", "A")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = intervals._of_draws(fit)
    assert found[0, 0] == pytest.approx(draws["E"].var())
    assert not np.isfinite(found[1, 1])


def test_more_budgets_do_not_move_a_public_exponent_between_disjoint_intervals() -> None:
    table = pd.read_csv(studies.public("porian2024/isoflop_points.csv"))
    for group in ("main", "owt2", "kaplan_tuned_hparams"):
        runs = table[(table["group"] == group) & (table["split"] == table["split"].iloc[0])]
        runs = runs.assign(flops_budget=[float(f"{value:.3e}") for value in runs["flops"]])
        budgets, ends = np.sort(runs["flops_budget"].unique()), []
        for largest in (budgets[-4], budgets[-1]):
            rows = studies.as_rows(runs[runs["flops_budget"] <= largest].reset_index(drop=True))
            power = valleys.fit(rows, resamples=300, seed=0).block.exponents["params"]
            ends.append(power.exponent_interval or (np.nan, np.nan))
        assert max(low for low, _ in ends) < min(high for _, high in ends)


@pytest.mark.parametrize("form", ["chinchilla", "kaplan_floor"])
def test_profiles_of_very_many_runs_end_where_those_of_few_do(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many runs each value is fitted from the one before, and none far beyond the last accepted one."""
    runs, own = studies.isoflop(1, noise=0.004), multistart.solve
    ends: list[dict[str, Any]] = []
    solved: list[int] = []

    def counted(p: Any, starts: Any, **given: Any) -> Any:
        solved[-1] += len(starts)
        return own(p, starts, **given)

    monkeypatch.setattr(multistart, "solve", counted)
    for many in (5_000, 10):
        monkeypatch.setattr(profile_likelihood, "MANY", many)
        solved.append(0)
        fit = fit_law(runs, form, loss="squared", resamples=0)
        solved[-1] = 0
        ends.append({name: (p.low, p.high, p.closed_low, p.closed_high) for name, p in fit.profiles.items()})
    assert {name for name, end in ends[0].items() if end[2] and end[3]}
    for name, end in ends[0].items():
        np.testing.assert_allclose(ends[1][name][:2], end[:2], rtol=1e-6)
        assert ends[1][name][2:] == end[2:]
    assert solved[1] < 0.6 * solved[0]
    assert all(np.isfinite(p.deviance).all() for p in fit.profiles.values())


def test_terms_of_one_input_may_take_each_others_place() -> None:
    problems = {name: fit_law(studies.isoflop(1, noise=0.004), name, resamples=0).problem for name in
                ("chinchilla", "chinchilla_tied", "chinchilla_interaction", "kaplan")}  # fmt: skip
    found = {name: profile_likelihood._shares_inputs(p) for name, p in problems.items()}
    assert [name for name, shares in found.items() if shares] == ["chinchilla_interaction"]
