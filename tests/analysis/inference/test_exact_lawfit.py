"""A fit's figures beside SciPy's minimum and the textbook's formulas for it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from analysis.estimation.objectives import Huber
from analysis.inference import intervals, resampling
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Identified
from tests.analysis import studies

NAMES = ["E", "A", "B", "alpha", "beta"]
N, Q = 20, 5


@cache
def table() -> pd.DataFrame:
    return studies.isoflop(5, noise=0.001)


@cache
def squared() -> LawFit:
    return fit_law(table(), loss="squared", resamples=0)


@cache
def drawn() -> LawFit:
    return fit_law(table(), loss="squared", resamples=60, seed=3)


def known(fit: LawFit) -> LawFit:
    """Return a fit of which all is known to be identified: intervals alone are looked at, not the verdicts."""
    other = replace(fit)
    other.__dict__["identified"] = dict.fromkeys(fit.names, Identified(True))
    return other


def limits(fit: LawFit, name: str, **asked: Any) -> tuple[float, float]:
    low, high = fit.conf_int(**asked).loc[name].to_numpy(dtype=float)
    return float(low), float(high)


def columns() -> tuple[Any, Any, Any]:
    return tuple(table()[name].to_numpy() for name in ("params", "tokens", "loss"))  # type: ignore[return-value]


def log_law(theta: Any, params: Any, tokens: Any) -> Any:
    """Return ln(e^E + e^A N^-alpha + e^B D^-beta) about the rows' mean logs."""
    n, d, _ = columns()
    x, y = np.log(params) - np.log(n).mean(), np.log(tokens) - np.log(d).mean()
    return np.log(np.exp(theta[0]) + np.exp(theta[1] - theta[3] * x) + np.exp(theta[2] - theta[4] * y))


def start() -> Any:
    n, d, _ = columns()
    E, A, B, alpha, beta = studies.LAW
    return np.array([np.log(E), np.log(A) - alpha * np.log(n).mean(), np.log(B) - beta * np.log(d).mean(), alpha, beta])


def natural(theta: Any) -> dict[str, float]:
    n, d, _ = columns()
    values = [np.exp(theta[0]), np.exp(theta[1] + theta[3] * np.log(n).mean()),
              np.exp(theta[2] + theta[4] * np.log(d).mean()), theta[3], theta[4]]  # fmt: skip
    found = dict(zip(NAMES, values, strict=True))
    return {**found, "a": theta[4] / (theta[3] + theta[4]), "b": theta[3] / (theta[3] + theta[4])}


@cache
def scipys(plain: bool = False) -> Any:
    """Return SciPy's least squares of the same rows."""
    n, d, loss = columns()

    def residual(theta: Any) -> Any:
        value = log_law(theta, n, d)
        return np.exp(value) - loss if plain else value - np.log(loss)

    tight: Any = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    return optimize.least_squares(residual, start(), jac="3-point", method="lm", **tight)


def gradient(of: Any, theta: Any) -> Any:
    steps = 1e-6 * np.eye(len(theta))
    return np.array([(of(theta + s) - of(theta - s)) / 2e-6 for s in steps])


def textbook() -> Any:
    """Return the covariance of theta: s^2 (J'J)^-1."""
    found = scipys()
    jacobian = gradient(lambda theta: log_law(theta, *columns()[:2]), found.x).T
    return np.linalg.inv(jacobian.T @ jacobian) * 2 * found.cost / (N - Q)


def test_least_squares_are_scipys() -> None:
    fit, found = squared(), scipys()
    assert fit.objective == pytest.approx(found.cost, rel=1e-9)
    expected = natural(found.x)
    assert {str(k): float(v) for k, v in {**fit.params, **fit.derived}.items()} == pytest.approx(expected, rel=1e-5)
    n, d, loss = columns()
    np.testing.assert_allclose(fit.fittedvalues, np.exp(log_law(found.x, n, d)), rtol=1e-7)
    np.testing.assert_allclose(fit.resid, np.log(loss) - log_law(found.x, n, d), atol=1e-8)
    np.testing.assert_allclose(fit.predict({"params": [1e9, 2e9], "tokens": 1e11}),
                               np.exp(log_law(found.x, np.array([1e9, 2e9]), 1e11)), rtol=1e-6)  # fmt: skip
    assert fit.names == (*NAMES, "a", "b")
    assert (fit.nobs, fit.free, fit.df_model, fit.df_resid) == (20, 5, 4, 15)
    assert fit.optimizer is fit.point.evidence
    assert fit.basins == fit.optimizer.basins


def test_criteria_count_the_scale() -> None:
    fit, found = squared(), scipys()
    llf = float(stats.norm.logpdf(found.fun, 0, np.sqrt(2 * found.cost / N)).sum())
    assert fit.llf == pytest.approx(llf, rel=1e-9)
    assert fit.aic == pytest.approx(-2 * llf + 12, rel=1e-9)
    assert fit.aicc == pytest.approx(-2 * llf + 12 + 2 * 6 * 7 / 13, rel=1e-9)
    assert fit.bic == pytest.approx(-2 * llf + 6 * np.log(20), rel=1e-9)
    few = [fit_law(table().iloc[:rows], loss="squared", resamples=0, fix={"E": 1.9}) for rows in (6, 7)]
    assert few[0].aicc == np.inf  # five constants and the scale: n - k - 1 is 0
    assert few[1].aicc == pytest.approx(few[1].aic + 2 * 5 * 6)
    spread = 1.4826 * np.median(np.abs(found.fun)) * np.sqrt(20 / 15)
    assert fit.noise == pytest.approx(spread, rel=1e-5)


def test_huber_fits_are_no_higher_than_scipys() -> None:
    fit = fit_law(table(), delta=0.004, resamples=0)
    n, d, loss = columns()
    criterion = Huber(0.004)

    def objective(theta: Any) -> float:
        return float(criterion.summed((log_law(theta, n, d) - np.log(loss))[None], None)[0][0])

    found = optimize.minimize(objective, scipys().x, method="Nelder-Mead",
                              options={"xatol": 1e-10, "fatol": 1e-16, "maxiter": 4000, "adaptive": True})  # fmt: skip
    assert fit.objective <= found.fun + 1e-12
    assert fit.objective == pytest.approx(found.fun, rel=1e-4)


def test_plain_residuals_are_of_the_values() -> None:
    fit, found = fit_law(table(), loss="squared", resamples=0, plain=True), scipys(True)
    assert fit.objective == pytest.approx(found.cost, rel=1e-9)
    assert {str(k): float(v) for k, v in fit.params.items()} == pytest.approx(
        {k: v for k, v in natural(found.x).items() if k in NAMES}, rel=1e-5
    )
    np.testing.assert_allclose(fit.resid, -found.fun, atol=1e-7)
    assert fit.loss_function == "squared(residual)"
    assert squared().loss_function == "squared(log residual)"
    jacobian = gradient(lambda theta: np.exp(log_law(theta, *columns()[:2])), found.x).T
    covariance = np.linalg.inv(jacobian.T @ jacobian) * 2 * found.cost / (N - Q)
    slope = gradient(lambda theta: np.log(natural(theta)["A"]), found.x)
    low, high = limits(known(fit), "A")
    reach = stats.t.ppf(0.975, 15) * np.sqrt(slope @ covariance @ slope)
    assert (np.log(low), np.log(high)) == pytest.approx(
        (np.log(fit.params["A"]) - reach, np.log(fit.params["A"]) + reach), rel=1e-4
    )


@pytest.mark.parametrize("alpha", [None, 0.05, 0.32])
def test_delta_intervals_are_students_in_logs_of_what_is_positive(alpha: float | None) -> None:
    fit, found, covariance = known(squared()), scipys(), textbook()
    ends = fit.conf_int(alpha)
    assert list(ends.index) == [*NAMES, "a", "b"]
    reach = stats.t.ppf(1 - (alpha or 0.05) / 2, 15)
    for name in ends.index:
        logs = name in ("E", "A", "B")

        def value(theta: Any, name: str = name, logs: bool = logs) -> float:
            return float(np.log(natural(theta)[name])) if logs else float(natural(theta)[name])

        slope = gradient(value, found.x)
        wide = reach * np.sqrt(slope @ covariance @ slope)
        low, high = value(found.x) - wide, value(found.x) + wide
        expected = (np.exp(low), np.exp(high)) if logs else (low, high)
        assert tuple(ends.loc[name]) == pytest.approx(expected, rel=2e-4)
    spread = fit.cov_params()
    whole = np.stack([gradient(lambda theta, n=n: natural(theta)[n], found.x) for n in NAMES])
    np.testing.assert_allclose(spread.to_numpy(), whole @ covariance @ whole.T, rtol=1e-3)
    assert list(spread.index) == list(spread.columns) == NAMES
    np.testing.assert_allclose(fit.bse.to_numpy(), np.sqrt(np.diag(whole @ covariance @ whole.T)), rtol=1e-3)
    assert fit.interval_method == "delta"


def test_the_sandwich_sums_over_groups() -> None:
    """A^-1 B A^-1 G/(G-1) (n-1)/(n-q) over model sizes, with t of G - 1 degrees of freedom."""
    rows = table().assign(size_group=np.arange(20) % 7)
    fit = known(fit_law(rows, loss="squared", resamples=0, interval="sandwich"))
    found = scipys()
    jacobian = gradient(lambda theta: log_law(theta, *columns()[:2]), found.x).T
    scores = np.array([(jacobian * found.fun[:, None])[np.arange(20) % 7 == g].sum(axis=0) for g in range(7)])
    bread = np.linalg.inv(jacobian.T @ jacobian)
    covariance = bread @ scores.T @ scores @ bread * 7 / 6 * 19 / 15
    slope = gradient(lambda theta: natural(theta)["a"], found.x)
    reach = stats.t.ppf(0.975, 6) * np.sqrt(slope @ covariance @ slope)
    low, high = limits(fit, "a")
    assert (low, high) == pytest.approx((natural(found.x)["a"] - reach, natural(found.x)["a"] + reach), rel=1e-3)
    assert fit.interval_method == "sandwich, clustered by sizes"
    delta = limits(fit, "a", method="delta")
    assert delta[1] - delta[0] == pytest.approx(known(squared()).conf_int().loc["a"].diff().iloc[1], rel=1e-6)
    runs = known(replace(fit, plan=resampling.Plan("runs", "")))
    other = limits(runs, "a")
    assert other[1] - other[0] != pytest.approx(high - low, rel=1e-2)
    each = np.array(jacobian * found.fun[:, None])
    covariance = bread @ each.T @ each @ bread * 20 / 19 * 19 / 15
    reach = stats.t.ppf(0.975, 19) * np.sqrt(slope @ covariance @ slope)
    assert other[1] - other[0] == pytest.approx(2 * reach, rel=1e-3)


def test_profiles_reject_where_the_f_test_does() -> None:
    """At each end the sum of squares, all else fitted anew, is 1 + F(0.95; 1, 15)/15 times the least."""
    fit = squared()
    ratio = 1 + stats.f.ppf(0.95, 1, 15) / 15
    for name in ("alpha", "A"):
        found = fit.profile(name)
        for end in (found.low, found.high):
            held = fit_law(table(), loss="squared", resamples=0, starts=2, fix={name: float(end)})
            assert held.objective / fit.objective == pytest.approx(ratio, rel=3e-3)
            assert (held.free, held.df_resid) == (4, 16)
            assert held.held == {name}
            assert held._interval(name, 0.05, "delta") == pytest.approx((end, end))
    wide, narrow = fit.profile("alpha", 0.01), fit.profile("alpha")
    assert wide.low < narrow.low < narrow.high < wide.high
    a = fit.profile("a")
    assert intervals.profile(fit, "a", 0.05) == (a.low, a.high)
    power = fit_law(table().assign(lr=1e-3 * table()["loss"]), "learning_rate", loss="squared", resamples=0)
    slope = power.profile("p")
    assert intervals.profile(power, "p", 0.05) == (slope.low, slope.high)


def test_one_free_constant_has_a_profile() -> None:
    E, A, B, alpha, _beta = studies.LAW
    fit = fit_law(table(), loss="squared", resamples=0, fix={"E": E, "A": A, "B": B, "alpha": alpha})
    found = fit.profile("beta")
    n, d, loss = columns()

    def squares(beta: float) -> float:
        return float((np.log(studies.loss((E, A, B, alpha, beta), n, d) / loss) ** 2).sum())

    ratio = 1 + stats.f.ppf(0.95, 1, 19) / 19
    best = optimize.minimize_scalar(squares, bounds=(0.25, 0.35), method="bounded", options={"xatol": 1e-12})
    assert float(fit.params["beta"]) == pytest.approx(float(best.x), rel=1e-7)
    for end in (found.low, found.high):
        assert squares(end) / float(best.fun) == pytest.approx(ratio, rel=1e-3)
    assert fit.identified["beta"].identified
    assert fit.bse[NAMES[:4]].tolist() == [0.0] * 4
    assert fit.bse["beta"] > 0


def test_tied_constants() -> None:
    fit = fit_law(table(), loss="squared", resamples=0, tie={"beta": "alpha"})
    assert (fit.free, fit.df_model, fit.df_resid) == (4, 3, 16)
    assert fit.held == frozenset()
    assert fit.params["alpha"] == fit.params["beta"]
    assert fit.derived["a"] == pytest.approx(0.5)
    n, d, loss = columns()

    def residual(t: Any) -> Any:
        return log_law([t[0], t[1], t[2], t[3], t[3]], n, d) - np.log(loss)

    found = optimize.least_squares(residual, start()[:4], jac="3-point", xtol=1e-14)
    assert fit.objective == pytest.approx(found.cost, rel=1e-8)
    assert fit.constraints == {"beta": "alpha"}


@pytest.mark.parametrize(
    ("options", "without"),
    [
        ({"tie": {"beta": "alpha"}}, ["a", "b"]),
        ({"fix": {"alpha": 0.33, "beta": 0.3}}, ["a", "b"]),
        ({"form": "farseer"}, ["s", "S", "B", "Q", "A", "F"]),
    ],
)
def test_what_has_no_profile_has_the_delta_methods_interval(options: Any, without: list[str]) -> None:
    fit = known(fit_law(table(), loss="squared", resamples=0, **options))
    by_profile, by_delta = fit.conf_int(method="profile"), fit.conf_int(method="delta")
    pd.testing.assert_frame_equal(by_profile.loc[without], by_delta.loc[without])
    held = [name for name in fit.names if name not in without and name not in fit.held]
    assert held
    assert (by_profile.loc[held] != by_delta.loc[held]).to_numpy().any(axis=1).all()


def test_a_coefficient_beyond_any_number_has_figures_of_its_log() -> None:
    fit = squared()
    centre = fit.problem.centres[1]
    theta = fit.point.theta.copy()
    theta[4] = 800.0 / centre  # an exponent of losses that are noise alone
    fit = known(
        replace(fit, point=replace(fit.point, theta=theta, constants=SURFACE.natural(theta, fit.problem.centres)))
    )
    log = theta[2] + 800.0
    assert fit.params["B"] == np.inf
    assert fit.quantities(theta[None], ("B",), True)[0, 0] == pytest.approx(log)
    assert fit.slopes(("B",), logs=True)[0] == pytest.approx([0.0, 0.0, 1.0, 0.0, centre])
    assert fit.spread("B") > 0
    found = fit.profile("B")
    assert np.isfinite(found.deviance).all()
    assert found.low > 1e300
    for method in ("profile", "delta", "sandwich"):
        assert not np.isnan(limits(fit, "B", method=method)).any()
        assert not np.isfinite(fit.cov_params(method).to_numpy()[2, 2])


def test_bootstrap_figures_are_those_of_the_draws() -> None:
    fit = known(drawn())
    assert fit.thetas.shape == (60, 5)
    constants = SURFACE.natural(fit.thetas, fit.problem.centres)
    np.testing.assert_allclose(fit.draws[NAMES].to_numpy(), constants)
    np.testing.assert_allclose(fit.draws["a"], constants[:, 4] / (constants[:, 3] + constants[:, 4]))
    np.testing.assert_allclose(fit.cov_params().to_numpy(), np.cov(constants.T), rtol=1e-9)
    np.testing.assert_allclose(fit.bse.to_numpy(), constants.std(axis=0, ddof=1), rtol=1e-9)
    ends = fit.conf_int(0.2)
    for i, name in enumerate(NAMES):
        expected = resampling.interval(constants[:, i], float(fit.params[name]), 0.8, logs=i < 3)
        assert tuple(ends.loc[name]) == expected
    assert fit.interval_method == fit.plan.text
    assert set(fit.undefined.values()) == {0.0}
    assert set(squared().undefined.values()) == {0.0}
    lost = fit.thetas.copy()
    lost[:6, 3] = np.nan
    found = replace(fit, thetas=lost)
    assert list(found.undefined) == [*NAMES, "a", "b"]
    assert (found.undefined["alpha"], found.undefined["a"]) == pytest.approx((0.1, 0.1))
    far = known(replace(fit, thetas=fit.thetas + 0.3 * np.eye(5)[0]))
    low, high = limits(far, "E")
    draws = np.sort(far.draws["E"])
    value = float(fit.params["E"])
    assert low == pytest.approx(value**2 / high)  # mirrored in logs, for E is positive
    assert draws[0] > value
    assert (fit.conf_int(method="delta").to_numpy() == known(squared()).conf_int().to_numpy()).all()
    np.testing.assert_allclose(fit.cov_params("delta"), squared().cov_params())
    np.testing.assert_allclose(fit.cov_params("profile"), squared().cov_params())


def test_intervals_of_what_is_not_identified_are_one_sided() -> None:
    fit = known(squared())
    for side, limit, positive, exponent in (
        ("upper", 3.0, (0.0, 3.0), (-np.inf, 3.0)), ("lower", 2.0, (2.0, np.inf), (2.0, np.inf)),
        (None, None, (np.nan, np.nan), (np.nan, np.nan)), ("upper", None, (np.nan, np.nan), (np.nan, np.nan)),
        ("lower", None, (np.nan, np.nan), (np.nan, np.nan)),
    ):  # fmt: skip
        verdict = Identified(False, "why", side, limit)
        other = replace(fit)
        other.__dict__["identified"] = {**fit.identified, "A": verdict, "alpha": verdict}
        ends = other.conf_int()
        np.testing.assert_array_equal(ends.loc["A"], positive)
        np.testing.assert_array_equal(ends.loc["alpha"], exponent)
        np.testing.assert_array_equal(np.isnan(other.bse), [False, True, False, True, False])
        block = other.block()
        assert block.intervals["A"] is block.intervals["alpha"] is None
        assert block.intervals["E"] == pytest.approx(tuple(fit.conf_int().loc["E"]))


def test_what_is_asked_is_checked() -> None:
    fit = squared()
    for alpha in (0.0, 1.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="a number between 0 and 1"):
            fit.conf_int(alpha)
    with pytest.raises(ValueError, match="bootstrap, delta, sandwich, profile"):
        fit.conf_int(method="wald")
    with pytest.raises(ValueError, match="resamples=0; fit again"):
        fit.conf_int(method="bootstrap")
    with pytest.raises(ValueError, match="bootstrap, delta, sandwich, profile"):
        fit.cov_params("wald")
    for confidence in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match=f"^confidence={confidence:g}: a number between 0 and 1"):
            fit_law(table(), loss="squared", resamples=0, confidence=confidence)
    with pytest.raises(ValueError, match="resamples=-1: a whole number, 0 or more is needed"):
        fit_law(table(), loss="squared", resamples=-1)
    with pytest.raises(ValueError, match="use bootstrap, delta, sandwich, profile"):
        fit_law(table(), loss="squared", resamples=0, interval="wald")
    with pytest.raises(ValueError, match="5 rows for 5 free constants of chinchilla: it needs at least 6 rows"):
        fit_law(table().iloc[:5], resamples=0)
    assert fit_law(table().iloc[:6], loss="squared", resamples=0, confidence=0.5).df_resid == 1
    with pytest.raises(ValueError, match="hold every constant of chinchilla"):
        fit_law(table(), resamples=0, fix=dict(zip(NAMES, studies.LAW, strict=True)))
    with pytest.raises(ValueError, match="no setting was run twice"):
        fit_law(table(), resamples=20, cluster="seeds")
    assert fit_law(table(), loss="squared", resamples=0, cluster="seeds").plan.by == "seeds"


def test_a_fit_keeps_what_it_was_asked() -> None:
    fit = fit_law(table(), "chinchilla", resamples=0, confidence=0.9, seed=4, kinds={"loss": "bits"}, starts=5,
                  tie={"beta": "alpha"}, fix={"E": 1.8})  # fmt: skip
    assert (fit.confidence, fit.seed, fit.kinds, fit.optimizer.starts) == (0.9, 4, {"loss": "bits"}, 5)
    assert fit.constraints == {"E": 1.8, "beta": "alpha"}
    assert fit.problem.loss == Huber(1e-3)
    assert fit.interval == "delta"
    assert fit_law(table(), resamples=0).confidence == 0.95
    assert fit_law(table(), resamples=0).optimizer.starts == 8
    assert fit_law(table(), resamples=0, interval="profile").interval == "profile"
    assert not fit_law(table(), resamples=0).problem.plain
    assert drawn().interval == "bootstrap"
    assert fit_law(table(), loss="squared", resamples=20, interval="delta").interval == "delta"


def test_distinct_minima_with_their_curvature() -> None:
    fit = squared()
    found = fit.point.minima
    assert found is not None
    values = np.array([2.0, 1.0, 1.0 + 1e-7, np.inf, 1.5, 1.5 + 1e-6, -1.0, -1.0 + 5e-7])
    thetas, metrics = np.arange(40.0).reshape(8, 5), np.arange(8.0)[:, None, None] * np.eye(5)
    odd = replace(fit.point, minima=replace(found, value=values, theta=thetas, metric=metrics))
    minima = replace(fit, point=odd).minima
    assert [value for _, value, _ in minima] == [-1.0, 1.0, 1.5, 2.0]
    assert [theta[0] for theta, _, _ in minima] == [30.0, 5.0, 20.0, 0.0]
    assert [metric[0, 0] for _, _, metric in minima] == [6.0, 1.0, 4.0, 0.0]


def test_minima_of_exact_fits_differ_by_more_than_rounding() -> None:
    fit = squared()
    found = fit.point.minima
    assert found is not None
    values = np.array([0.0, 0.9e-15, 1.1e-15, 1e-9, np.nan, np.inf, np.inf, np.inf])
    odd = replace(fit.point, minima=replace(found, value=values))
    assert [value for _, value, _ in replace(fit, point=odd).minima] == [0.0, 1.1e-15, 1e-9]


def test_predictions_and_figures_are_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = squared()
    runs = {"params": [1e9], "tokens": [1e11]}
    assert fit.get_prediction(runs).mean == pytest.approx(fit.prediction(runs).mean)
    asked: list[Any] = []

    class Figures:
        def __getattr__(self, name: str) -> Any:
            def draw(_: LawFit, *given: Any) -> str:
                asked.append((name, given))
                return name

            return draw

    monkeypatch.setattr("analysis.inference.law_result._figures", Figures)
    axes = SimpleNamespace(set_xlabel=None)
    drawn_names = [fit.plot_residuals(), fit.plot_profile("A", axes), fit.plot_fit(), fit.plot_draws("A", "B")]
    assert drawn_names == ["residuals", "profile", "observed", "draws"]
    assert asked == [
        ("residuals", ("params", None)), ("profile", ("A", axes)), ("observed", (None,)), ("draws", ("A", "B", None)),
    ]  # fmt: skip


def test_a_sandwich_of_one_group_has_one_degree_of_freedom() -> None:
    rows = table().assign(size_group=1)
    fit = known(fit_law(rows, loss="squared", resamples=0, interval="sandwich", cluster="seeds"))
    low, high = limits(fit, "a")
    spread = fit.spread("a")
    assert high - low > 0
    assert np.isfinite(spread)
    slope = fit.slopes(("a",))[0]
    reach = stats.t.ppf(0.975, 1) * np.sqrt(slope @ intervals._clustered(fit) @ slope)
    assert high - low == pytest.approx(2 * reach)


def test_blocks_hold_the_fit() -> None:
    fit = known(squared())
    block = fit.block()
    assert block.approach == "surface"
    assert block.params == {name: float(value) for name, value in fit.params.items()}
    assert block.derived == {name: float(value) for name, value in fit.derived.items()}
    assert (block.objective, block.rows_used, block.form) == (fit.objective, 20, SURFACE.text)
    other = known(fit_law(table(), "compute", loss="squared", resamples=0)).block()
    assert other.approach == "compute"


def test_resamples_do_not_depend_on_the_order_of_rows() -> None:
    """Weights of whole groups, errors around the fit, and seeds: the same draws for the same rows."""
    rows = pd.concat([table(), table().assign(loss=table()["loss"] * np.exp(0.003 * np.sin(np.arange(20))))])
    rows = rows.assign(run=np.tile(np.arange(20), 2)).reset_index(drop=True)
    order = np.random.default_rng(0).permutation(40)
    shuffled = rows.iloc[order].reset_index(drop=True)
    for cluster in ("runs", "residuals", "seeds", "rows"):
        one, two = (
            fit_law(each, loss="squared", fix={"E": 1.9}, cluster=cluster, resamples=20, seed=1)
            for each in (rows, shuffled)
        )
        np.testing.assert_allclose(one.draws[["alpha", "beta"]], two.draws[["alpha", "beta"]], rtol=1e-6)
        assert one.plan.by == cluster
        assert one.draws["alpha"].std() > 0
