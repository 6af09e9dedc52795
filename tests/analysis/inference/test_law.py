"""fit_law and its results: names, constraints, intervals, predictions, tables; the same numbers whoever asks."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.diagnostics.sensitivity import sensitivity
from analysis.estimation import objectives
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.inference.selection import compare
from analysis.inputs import rows
from tests.analysis import studies


@cache
def chinchilla_fit() -> LawFit:
    return fit_law(studies.chinchilla(), resamples=400)


def study(seed: int = 0, noise: float = 0.002) -> pd.DataFrame:
    return studies.isoflop(seed, noise=noise, budgets=(1e17, 1e18, 1e19, 1e20), law=(1.7, 400.0, 900.0, 0.34, 0.3))


def test_names_are_those_of_statsmodels() -> None:
    fit = chinchilla_fit()
    assert list(fit.params.index) == ["E", "A", "B", "alpha", "beta"]
    assert (fit.nobs, fit.df_resid, fit.df_model) == (240, 235, 4)
    assert fit.cov_params().shape == (5, 5)
    np.testing.assert_allclose(fit.bse, np.sqrt(np.diag(fit.cov_params())))
    table: Any = fit.conf_int()
    assert list(table.columns) == [0, 1]
    assert list(table.index) == ["E", "A", "B", "alpha", "beta", "a", "b"]
    values = pd.concat((fit.params, fit.derived))
    assert (table[0] < values).all()
    assert (table[1] > values).all()
    np.testing.assert_allclose(fit.resid, np.log(fit.observed / fit.fittedvalues))
    assert fit.bic - fit.aic == pytest.approx(6 * (np.log(240) - 2))


def test_narrower_confidence_is_a_narrower_interval() -> None:
    fit = chinchilla_fit()
    for method in ("bootstrap", "delta", "sandwich", "profile"):
        wide, narrow = (fit.conf_int(alpha, method).loc["alpha"] for alpha in (0.05, 0.5))
        assert wide[0] < narrow[0] < fit.params["alpha"] < narrow[1] < wide[1]


def test_published_intervals_of_a() -> None:
    least = fit_law(studies.chinchilla(), loss="squared", resamples=0)
    width = float(np.diff(least.conf_int(method="delta").loc["a"])[0])
    assert width / (2 * 1.970) == pytest.approx(0.0092, abs=2e-4)
    profile = fit_law(studies.chinchilla(), loss="student_t", resamples=0).profile("a")
    assert (profile.low, profile.high) == pytest.approx((0.4915, 0.5304), abs=0.003)
    assert profile.closed_low
    assert profile.closed_high


@pytest.mark.parametrize(
    ("form", "aic"),
    [
        ("chinchilla", -1694.8), ("chinchilla_tied", -1686.4), ("chinchilla_no_floor", -1305.5), ("kaplan", -1297.0),
        ("kaplan_floor", -1409.9),
    ],
)  # fmt: skip
def test_published_aic(form: str, aic: float) -> None:
    assert fit_law(studies.chinchilla(), form, loss="squared", resamples=0).aic == pytest.approx(aic, abs=0.06)


def test_richer_forms_are_at_least_as_well_minimised_as_published() -> None:
    farseer = fit_law(studies.chinchilla(), "farseer", loss="squared", resamples=0)
    assert farseer.aic <= -1795.4
    assert farseer.optimizer.agree_share >= 0.5
    assert fit_law(studies.chinchilla(), "chinchilla_interaction", loss="squared", resamples=0).aic <= -1816.1


def test_a_covariance_by_delta_is_that_of_least_squares() -> None:
    import statsmodels.api as sm

    generator = np.random.default_rng(0)
    size, tokens = np.exp(generator.uniform(16, 22, 30)), np.exp(generator.uniform(20, 26, 30))
    rate = 1.79 * size**-0.713 * tokens**0.307 * np.exp(0.1 * generator.normal(size=30))
    fit = fit_law({"params": size, "tokens": tokens, "lr": rate}, "learning_rate", loss="squared", resamples=0)
    ols = sm.OLS(np.log(rate), sm.add_constant(np.log(np.stack((size, tokens), axis=1)))).fit()
    np.testing.assert_allclose(fit.params[["p", "q"]], ols.params[1:], rtol=1e-6)
    np.testing.assert_allclose(fit.bse[["p", "q"]], ols.bse[1:], rtol=1e-6)
    np.testing.assert_allclose(fit.conf_int().loc["p"], ols.conf_int()[1], rtol=1e-6)
    # ols has no scale among its constants.
    assert fit.aic - 2 == pytest.approx(ols.aic)
    groups = np.repeat(np.arange(10), 3)
    clustered = fit_law(
        {"params": size, "tokens": tokens, "lr": rate, "size_group": groups}, "learning_rate", loss="squared",
        resamples=0, interval="sandwich",
    )  # fmt: skip
    robust = ols.get_robustcov_results("cluster", groups=groups)
    np.testing.assert_allclose(clustered.bse[["p", "q"]], robust.bse[1:], rtol=0.03)


@pytest.mark.parametrize("loss", ["huber", "student_t", "l1", "squared"])
def test_every_loss_function_finds_the_law_and_states_its_likelihood(loss: str) -> None:
    fit = fit_law(study(noise=0.001), loss=loss, resamples=0)
    assert fit.derived["a"] == pytest.approx(0.3 / 0.64, abs=0.02)
    assert fit.optimizer.converged
    assert loss.split("_", maxsplit=1)[0] in fit.loss_function
    worse = fit.problem.loss.llf_of(fit.objective + 0.01 * abs(fit.objective), fit.nobs)
    assert worse < fit.llf


def test_likelihoods_integrate_to_one() -> None:
    at = np.linspace(-60, 60, 400001)
    for loss in (objectives.Huber(0.5), objectives.Squared(), objectives.Absolute(1e-9), objectives.StudentT()):
        residual = np.random.default_rng(0).standard_t(3, size=(1, 400))
        objective = float(loss.summed(residual, None)[0][0])
        density = np.exp(_log_density(loss, residual, at))
        assert np.trapezoid(density, at) == pytest.approx(1.0, abs=2e-3)
        assert float(_log_density(loss, residual, residual[0]).sum()) == pytest.approx(
            loss.llf_of(objective, 400), rel=1e-3
        )


def _log_density(loss: objectives.Loss, residual: Any, at: Any) -> Any:
    """Return the log density at residuals, by each loss's own formula at its fitted scale."""
    n = residual.size
    if isinstance(loss, objectives.Squared):
        variance = float((residual**2).mean())
        return -0.5 * (np.log(2 * np.pi * variance) + at**2 / variance)
    if isinstance(loss, objectives.Absolute):
        scale = float(np.abs(residual).mean())
        return -np.log(2 * scale) - np.abs(at) / scale
    if isinstance(loss, objectives.StudentT):
        from scipy.stats import t

        return t.logpdf(at, 3, scale=float(t.fit(residual[0], f0=3, floc=0)[2]))
    from scipy.optimize import minimize_scalar

    assert isinstance(loss, objectives.Huber)
    grid = np.linspace(-60, 60, 20001)
    total = float(loss(residual)[0].sum())

    def negative(tau: float) -> float:
        return float(total / tau + n * np.log(np.trapezoid(np.exp(-loss(grid)[0] / tau), grid)))

    tau = float(minimize_scalar(negative, bounds=(0.05, 5.0), method="bounded").x)
    return -loss(at)[0] / tau - np.log(np.trapezoid(np.exp(-loss(grid)[0] / tau), grid))


def test_fixed_and_tied_constants_stay_so() -> None:
    table = study()
    fixed = fit_law(table, fix={"E": 1.7, "A": 400.0}, resamples=50)
    assert fixed.params["E"] == pytest.approx(1.7)
    assert fixed.params["A"] == pytest.approx(400.0)
    np.testing.assert_allclose(fixed.draws["A"], 400.0)
    assert fixed.free == 3
    assert tuple(fixed.conf_int().loc["E"]) == pytest.approx((1.7, 1.7))
    tied = fit_law(table, tie={"beta": "alpha"}, resamples=20)
    assert tied.params["alpha"] == pytest.approx(tied.params["beta"], rel=1e-12)
    same = fit_law(table, "chinchilla_tied", resamples=0)
    assert tied.objective == pytest.approx(same.objective, rel=1e-9)
    none = fit_law(table, fix={"E": 0.0}, resamples=0)
    assert none.objective == pytest.approx(fit_law(table, "chinchilla_no_floor", resamples=0).objective, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "chinchila"}, "form=chinchila is not known"),
        ({"loss": "cauchy"}, "huber, student_t, l1, squared"),
        ({"delta": -1.0}, "delta=-1: a positive number"),
        ({"fix": {"gamma": 1.0}}, "has no such constant; it has E, A, B, alpha, beta"),
        ({"fix": {"E": -1.0}}, "is positive"),
        ({"tie": {"alpha": "A"}}, "an exponent cannot be tied to a coefficient"),
        ({"fix": {"alpha": 0.3, "beta": 0.3}, "tie": {"alpha": "beta"}}, "contradict or repeat"),
        ({"cluster": "nodes"}, "cluster='nodes' is not known"),
        ({"interval": "bayes"}, "use bootstrap, delta, sandwich, profile"),
        ({"form": "farseer", "fix": {"s": 1.0}}, "cannot be fixed"),
    ],
)
def test_wrong_arguments_name_the_key_and_what_is_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_law(study(), **{"resamples": 0, **arguments})


def test_wrong_columns_are_named() -> None:
    with pytest.raises(ValueError, match=r"no column 'tokens': chinchilla .* needs it"):
        fit_law({"params": [1.0], "loss": [2.0]})
    with pytest.raises(ValueError, match=r"'loss': positive numbers are needed, not -2 \(1 of"):
        fit_law(study().assign(loss=lambda t: t["loss"].where(t.index > 0, -2.0)))
    with pytest.raises(ValueError, match="5 rows for 5 free constants"):
        fit_law(study().iloc[:5])
    with pytest.raises(ValueError, match="resamples=0"):
        fit_law(study(), resamples=0).conf_int(method="bootstrap")


def test_what_the_bootstrap_draws_can_be_chosen() -> None:
    table = studies.chinchilla().iloc[::2]
    texts = {c: fit_law(table, cluster=c, resamples=30).interval_method for c in ("sizes", "runs", "rows", "residuals")}
    assert len(set(texts.values())) == 4
    repeated = pd.concat([study(seed, 0.01) for seed in range(3)])
    seeds = fit_law(repeated, cluster="seeds", resamples=60)
    assert seeds.bse["alpha"] > 0
    exact = pd.concat([study(0, 0.01)] * 3)
    with pytest.raises(ValueError, match="cluster=seeds: all repeats of a setting have the same loss"):
        fit_law(exact, cluster="seeds", resamples=20)
    assert chinchilla_fit().interval_method == "percentile bootstrap over the 42 model sizes"


def test_workers_do_not_change_a_number() -> None:
    table = study()
    one, two = (fit_law(table, resamples=300, workers=w, seed=3) for w in (1, 3))
    pd.testing.assert_frame_equal(one.draws, two.draws)


def test_predictions_hold_new_runs_about_as_often_as_they_say() -> None:
    hits, total = 0, 0
    for seed in range(12):
        fit = fit_law(study(seed, 0.01), loss="squared", resamples=200, seed=seed)
        new = study(100 + seed, 0.01)
        frame = fit.get_prediction(new).summary_frame()
        hits += int(new["loss"].between(frame["obs_ci_lower"], frame["obs_ci_upper"]).sum())
        total += len(new)
        beyond = frame["obs_ci_upper"] - frame["obs_ci_lower"] - (frame["mean_ci_upper"] - frame["mean_ci_lower"])
        assert (beyond >= 0).all()
        assert (beyond > 0).all() or fit.plan.drift, "of few draws, those of wide means may hold an observation already"
    assert 0.90 <= hits / total <= 1.0


def test_predictions_can_hold_the_uncertainty_of_the_form() -> None:
    table = study(noise=0.01)
    fits = [fit_law(table, form, loss="squared", resamples=100) for form in ("chinchilla", "chinchilla_tied")]
    far = {"params": [1e12], "tokens": [1e13]}
    alone = fits[0].get_prediction(far).summary_frame().iloc[0]
    worst = fits[0].prediction(far, fits[1:], how="worst").summary_frame().iloc[0]
    assert worst["mean_ci_lower"] <= alone["mean_ci_lower"]
    assert worst["mean_ci_upper"] >= alone["mean_ci_upper"]
    pooled = fits[0].prediction(far, fits[1:])
    assert sum(pooled.weights.values()) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="other rows"):
        fits[0].prediction(far, [fit_law(study(1, 0.01), resamples=0)])


def test_laws_of_fewer_resamples_keep_their_weight_in_a_prediction_of_several() -> None:
    runs = studies.isoflop(0, noise=0.003)
    fit = fit_law(runs, "chinchilla", loss="squared", resamples=200)
    other = fit_law(runs, "chinchilla_tied", loss="squared", resamples=20)
    new = {"params": [1e9], "tokens": [2e10]}
    found = fit.prediction(new, (other,))
    of_other = np.isin(found.mean_draws[0], other.prediction(new).mean_draws[0]).mean()
    assert 0.1 < found.weights["chinchilla_tied"] < 0.9
    assert of_other == pytest.approx(found.weights["chinchilla_tied"], abs=0.01)


def test_summary_says_it_in_four_formats() -> None:
    summary = chinchilla_fit().summary()
    text = str(summary)
    for piece in (
        "E + A/N^alpha + B/D^beta",
        "delta=0.001",
        "0.0010182740178",
        "100 % of 8",
        "42 model sizes",
        "477.83",
    ):
        assert piece in text
    assert "alpha A +0.99" in text
    assert summary.as_html().count("<tr>") >= 8
    assert r"\begin{tabular}" in summary.as_latex()
    assert summary.as_csv().splitlines()[1].startswith("E,1.8172,")
    assert max(len(line) for line in text.splitlines()[:20]) < 100


def test_the_record_is_json_and_says_all() -> None:
    fit = fit_law(study(), resamples=50, kinds={"params": "matmul", "loss": "nats per token"}, fix={"E": 1.7})
    record = json.loads(json.dumps(fit.record(), allow_nan=False))
    keys = (
        "form loss_function objective params intervals checks rows_used optimizer kinds interval_method seed resamples"
    )
    for key in (*keys.split(), "versions", "constraints", "aicc", "aic", "ranges"):
        assert key in record
    assert record["constraints"] == {"E": 1.7}
    assert record["optimizer"]["starts"] == 8


def test_compare_ranks_forms_and_refuses_other_rows() -> None:
    table = study(noise=0.003)
    fits = [
        fit_law(table, form, loss="squared", resamples=0) for form in ("kaplan", "chinchilla", "chinchilla_no_floor")
    ]
    out: Any = compare(fits)
    assert out.index[0] == "chinchilla"
    assert list(out["rank"]) == [0, 1, 2]
    assert out["delta_aicc"].iloc[0] == 0
    assert list(out["aicc"]) == sorted(out["aicc"])
    assert out["weight"].sum() == pytest.approx(1.0)
    assert out.loc["chinchilla", "error"] < out.loc["kaplan", "error"]
    with pytest.raises(ValueError, match="cannot be compared"):
        compare([fits[0], fit_law(table.iloc[1:], resamples=0)])


def test_few_rows_cost_more_for_every_constant() -> None:
    import statsmodels.tools.eval_measures as measures

    fit = fit_law(study(noise=0.003), loss="squared", resamples=0)
    assert fit.aicc == pytest.approx(measures.aicc(fit.llf, fit.nobs, fit.free + 1))
    assert fit_law(study(noise=0.003).iloc[:7], loss="squared", resamples=0).aicc == np.inf
    exact = compare([fit_law(study().iloc[:7], form, loss="squared", resamples=0) for form in ("chinchilla", "kaplan")])
    assert list(exact.index) == ["kaplan", "chinchilla"]
    assert list(exact["weight"]) == [1.0, 0.0]


def test_the_law_that_made_the_tutorials_data_ranks_first() -> None:
    from pathlib import Path

    from analysis.inputs import frame

    runs = frame.used(rows.from_csv(Path("docs/tutorial/runs.csv"), params_kind="total", flop_rule="6ND"))
    forms = ("chinchilla", "chinchilla_tied", "farseer", "chinchilla_interaction")
    out: Any = compare([fit_law(runs, form, loss="squared", resamples=0) for form in forms])
    assert out.index[0] == "chinchilla"
    assert out["aic"].idxmin() == "chinchilla_interaction"  # AIC alone prefers eight constants to five at 36 rows


def test_the_largest_models_are_held_out_not_the_worst() -> None:
    from analysis.inference.selection import size_of

    loss = np.linspace(3.6, 2.4, 20)
    error = 0.857 - 2.21 * np.exp(-0.715 * loss)
    fit = fit_law({"loss": loss, "error": error}, "downstream", loss="squared", plain=True, resamples=0)
    assert list(np.argsort(size_of(fit))[-4:]) == [16, 17, 18, 19]
    sized = {"loss": loss, "error": error, "params": np.geomspace(1e9, 1e7, 20), "tokens": np.full(20, 1e10)}
    fit = fit_law(sized, "downstream", loss="squared", plain=True, resamples=0)
    assert list(np.argsort(size_of(fit))[-4:]) == [3, 2, 1, 0]


def test_plain_and_log_residuals_are_not_pooled() -> None:
    table = study(noise=0.003)
    logs = fit_law(table, loss="squared", resamples=20)
    plain = fit_law(table, "chinchilla_tied", loss="squared", plain=True, resamples=20)
    with pytest.raises(ValueError, match="differ in whether residuals are logs"):
        logs.prediction({"params": [1e9], "tokens": [1e10]}, [plain])


def test_sensitivity_shows_what_the_interval_does_not_hold() -> None:
    table = pd.read_csv(studies.public("chinchilla_epoch/runs.csv"))
    out = sensitivity(table, resamples=0).set_index(["choice", "option"])["value"]
    assert out["none", "as fitted"] == pytest.approx(0.5646, abs=1e-3)
    for left_out, a in (
        ("the highest loss", 0.5441), ("the 5 highest losses", 0.5139), ("the 10 highest losses", 0.5086),
        ("the 20 highest losses", 0.4838),
    ):  # fmt: skip
        assert out["outliers", f"without {left_out}"] == pytest.approx(a, abs=1e-3)
    used = sensitivity(studies.chinchilla(), resamples=0).set_index(["choice", "option"])["value"]
    for delta, a in ((1e-4, 0.5126), (1e-2, 0.5184), (1e-1, 0.5298)):
        assert used["loss function", f"huber, delta {delta:g}"] == pytest.approx(a, abs=1e-4)
    assert sum("compute range" in row for row in used.index.get_level_values(0)) == 5


def test_sensitivity_to_counting_and_to_the_learning_rate() -> None:
    table = study(noise=0.0).assign(params_total=lambda t: t["params"] + 47491 * t["params"] ** (1 / 3))
    worse = table.assign(lr=1e-3, loss=table["loss"] * (1 + 0.01 * np.log(table["params"] / 1e7)))
    both = pd.concat((worse, table.assign(lr=3e-3)))
    out: Any = sensitivity(both, resamples=0).set_index(["choice", "option"])
    assert out.loc[("learning rate", "best of each setting"), "nobs"].item() == len(table)
    assert ("parameter count", "params_total") in out.index
    moved = out.loc[("parameter count", "params_total"), "shift"].item()
    assert abs(moved) > 0.005
    with pytest.raises(ValueError, match="quantity='c'"):
        sensitivity(table, quantity="c", resamples=0)


def test_profile_of_a_fixed_law_agrees_with_a_plain_search() -> None:
    from scipy.optimize import minimize_scalar

    table = study(noise=0.01)
    fit = fit_law(table, loss="squared", resamples=0)
    profile = fit.profile("alpha")

    def objective(alpha: float) -> float:
        return fit_law(table, loss="squared", resamples=0, fix={"alpha": alpha}).objective

    n, df = fit.nobs, fit.df_resid
    limit = fit.objective * np.exp(profile.cut / n)
    assert objective(profile.low) == pytest.approx(limit, rel=5e-3)
    assert objective(profile.high) == pytest.approx(limit, rel=5e-3)
    assert df == n - 5
    assert minimize_scalar(objective, bounds=(profile.low, profile.high), method="bounded").fun >= fit.objective * (
        1 - 1e-9
    )


def test_the_public_surface_is_short_and_complete() -> None:
    for name in analysis.__all__:
        assert getattr(analysis, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fit_lore'"):
        _ = analysis.fit_lore


def test_functions_keep_their_names_beside_the_command_of_the_same_name() -> None:
    """Importing the module `analysis.compare` does not put it in the function's place."""
    root = Path(__file__).parents[3]
    code = "import analysis.compare; from analysis import compare; import inspect, sys, runpy; "
    code += "assert inspect.isfunction(compare) and analysis.compare is compare; "
    code += "sys.argv = ['', 'runs=x', 'forms=list']; runpy.run_module('analysis.compare', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, "chinchilla" in done.stdout) == (0, True), done.stderr
    assert callable(analysis.compare)
    assert importlib.import_module("analysis.approaches.comparison").__name__ == "analysis.approaches.comparison"
    assert callable(analysis.approaches.side_by_side)


def test_profiles_are_followed_once_a_fit() -> None:
    fit = fit_law(studies.isoflop(0, noise=0.004), resamples=0)
    assert list(fit.profiles) == ["E", "A", "B", "alpha", "beta"]
    assert all(fit.profile(name) is found for name, found in fit.profiles.items())
    assert fit.profile("E", 0.5).high < fit.profile("E").high
    held = fit_law(studies.isoflop(0, noise=0.004), fix={"E": 1.9}, resamples=0)
    assert list(held.profiles) == ["A", "B", "alpha", "beta"]
