"""Predictions by hand: interval ends over forms, weights of criteria, draws of means and of observations."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from analysis.estimation import objectives
from analysis.inference import akaike, covariance, prediction, resampling
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.inference.prediction import Prediction, predicted
from tests.analysis import studies

TABLE = studies.isoflop(1, noise=0.003)
AT = {"params": [1e6, 4e6], "tokens": [1e7, 9e8]}


@cache
def fit(form: str = "chinchilla", resamples: int = 24, plain: bool = False) -> LawFit:
    return fit_law(TABLE, form, loss="squared", resamples=resamples, plain=plain, cluster="residuals")


def test_a_table_is_the_hull_over_forms() -> None:
    generator = np.random.default_rng(0)
    means = tuple(generator.normal(3.0, sd, size=(400, 2)) for sd in (0.1, 0.2))
    obs = tuple(generator.normal(3.0, sd, size=(400, 2)) for sd in (0.3, 0.25))
    found = Prediction(np.array([3.0, 3.0]), means, obs, {}, 0.9)
    for alpha, level in ((None, 0.9), (0.5, 0.5)):
        table = found.summary_frame(alpha)
        assert list(table.columns) == [
            "mean", "mean_se", "mean_ci_lower", "mean_ci_upper", "obs_ci_lower", "obs_ci_upper"
        ]  # fmt: skip
        for i in range(2):
            ends = [resampling.interval(draws[:, i], 3.0, level) or (np.nan, np.nan) for draws in (*means, *obs)]
            assert table["mean"][i] == 3.0
            assert table["mean_ci_lower"][i] == min(ends[0][0], ends[1][0])
            assert table["mean_ci_upper"][i] == max(ends[0][1], ends[1][1])
            assert table["obs_ci_lower"][i] == min(ends[2][0], ends[3][0])
            assert table["obs_ci_upper"][i] == max(ends[2][1], ends[3][1])
            assert table["mean_se"][i] == pytest.approx(max(draws[:, i].std() for draws in means))
    none = Prediction(np.array([3.0]), (np.full((5, 1), np.nan),), (np.full((5, 1), np.nan),), {}, 0.9)
    assert np.isnan(none.summary_frame()["mean_ci_lower"][0])
    assert np.isnan(none.summary_frame()["obs_ci_upper"][0])


@pytest.mark.parametrize("resamples", [0, 24])
def test_an_observations_interval_holds_the_means(resamples: int) -> None:
    """Far from the runs the mean is uncertain by more than runs scatter, and the ends of draws differ by chance."""
    at = {"params": [1e6, 1e7, 1e5, 1e9], "tokens": [1e7, 1e6, 1e9, 1e11]}
    found = fit_law(studies.isoflop(1, noise=3e-4), loss="squared", resamples=resamples).get_prediction(at)
    for alpha in (None, 0.5):
        table = found.summary_frame(alpha)
        assert (table["obs_ci_lower"] <= table["mean_ci_lower"]).all()
        assert (table["obs_ci_upper"] >= table["mean_ci_upper"]).all()


def test_one_form_keeps_its_draws() -> None:
    found = predicted(fit(), AT)
    np.testing.assert_array_equal(found.mean, fit().predict(AT))
    mean, obs = prediction._drawn(fit(), AT)
    np.testing.assert_array_equal(found.mean_draws[0], mean)
    np.testing.assert_array_equal(found.obs_draws[0], obs)
    assert found.weights == {"chinchilla": 1.0}
    assert found.confidence == 0.95
    np.testing.assert_allclose(mean, fit().predicted(fit().thetas, AT))


def test_forms_share_draws_by_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = (fit(), fit("chinchilla_tied"))
    shares = akaike.weights([f.aicc for f in fits])
    found = predicted(fits[0], AT, fits[1:])
    assert found.weights == pytest.approx({"chinchilla": shares[0], "chinchilla_tied": shares[1]})
    monkeypatch.setattr(prediction, "weights", lambda criteria: np.array([0.75, 0.25]))
    found = predicted(fits[0], AT, fits[1:])
    drawn = [prediction._drawn(f, AT) for f in fits]
    picks = [np.linspace(0, 23, n).astype(int) for n in (18, 6)]
    for kind, made in ((0, found.mean_draws), (1, found.obs_draws)):
        want = np.concatenate([d[kind][i] for d, i in zip(drawn, picks, strict=True)])
        assert len(made) == 1
        np.testing.assert_array_equal(made[0], want)
    np.testing.assert_array_equal(found.mean, fits[0].predict(AT))
    monkeypatch.setattr(prediction, "weights", lambda criteria: np.array([1.0, 0.0]))
    assert len(predicted(fits[0], AT, fits[1:]).mean_draws[0]) == 24


def test_the_worst_case_is_over_accepted_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = (fit(), fit("chinchilla_tied"), fit("kaplan"))
    for gaps, kept in (((0.0, 10.0, 10.1), (0, 1)), ((0.0, 3.0, 4.0), (0, 1, 2)), ((11.0, 0.0, 10.5), (1,))):
        monkeypatch.setattr(prediction, "behind", lambda criteria, gaps=gaps: np.array(gaps))
        found = predicted(fits[0], AT, fits[1:], how="worst")
        assert len(found.mean_draws) == len(found.obs_draws) == len(kept)
        for k, mean, obs in zip(kept, found.mean_draws, found.obs_draws, strict=True):
            np.testing.assert_array_equal(mean, prediction._drawn(fits[k], AT)[0])
            np.testing.assert_array_equal(obs, prediction._drawn(fits[k], AT)[1])
        np.testing.assert_array_equal(found.mean, fits[0].predict(AT))
        assert set(found.weights) == {"chinchilla", "chinchilla_tied", "kaplan"}
        assert found.confidence == 0.95


def test_what_does_not_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="how='best' is not known; use aic or worst"):
        predicted(fit(), AT, how="best")
    fewer = fit_law(TABLE.iloc[:18], "kaplan", resamples=0)
    other = fit_law(TABLE.assign(loss=TABLE["loss"] * 1.01), "kaplan", resamples=0)
    for wrong in (fewer, other):
        with pytest.raises(ValueError, match="kaplan was fitted to other rows than chinchilla"):
            predicted(fit(), AT, (wrong,))
    with pytest.raises(ValueError, match="differ in whether residuals are logs"):
        predicted(fit(), AT, (fit("kaplan", 0, True),))


def test_without_resamples_the_covariance_gives_the_draws() -> None:
    calm = studies.isoflop(1, noise=0.0003)  # so that the law is a line over its draws
    bare = fit_law(calm, loss="squared", resamples=0)
    mean, obs = prediction._drawn(bare, AT)
    assert mean.shape == obs.shape == (1000, 2)
    step, slopes = 1e-6, []
    for i in range(5):
        moved = bare.point.theta + step * np.eye(5)[i]
        slopes.append((bare.predicted(moved[None], AT)[0] - bare.predict(AT)) / step)
    want = np.sqrt(np.einsum("in,ij,jn->n", slopes, covariance.delta(bare.problem, bare.point), slopes))
    np.testing.assert_allclose(mean.std(axis=0), want, rtol=0.1)
    np.testing.assert_allclose(mean.mean(axis=0), bare.predict(AT), rtol=1e-3)
    assert prediction._drawn(fit(), AT)[0].shape == (24, 2)


def test_residuals_are_centred_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "location", lambda loss, residual: 0.05)
    mean, obs = prediction._drawn(fit(resamples=0), AT)
    assert np.median(np.log(obs / mean)) == pytest.approx(-0.05 * np.sqrt(20 / 15), rel=0.05)


def test_far_losses_are_refused_for_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(prediction, "refuse_far", lambda form, data, at: seen.append((form.name, at.tolist())))
    predicted(fit(), AT, (fit("chinchilla_tied"),))
    assert seen == [(name, [AT["params"], AT["tokens"]]) for name in ("chinchilla", "chinchilla_tied")]


@pytest.mark.parametrize("plain", [False, True])
def test_an_observation_scatters_like_a_residual(plain: bool) -> None:
    """Of residuals widened by sqrt(n / df) and divided by their own scale drawn: tails of Student's t."""
    bare: Any = fit(resamples=0, plain=plain)
    mean, obs = prediction._drawn(bare, AT)
    away = obs - mean if plain else np.log(obs / mean)
    scale = float(np.sqrt((bare.resid**2).sum() / 15))
    assert np.sqrt(np.mean(np.clip(away / scale, -4, 4) ** 2)) == pytest.approx(np.sqrt(15 / 13), rel=0.08)
    assert np.median(away) == pytest.approx(np.median(bare.resid), abs=0.3 * scale)
    assert np.corrcoef(away.T)[0, 1] ** 2 < 0.02, "each observation has its own"
    again = prediction._drawn(bare, AT)
    np.testing.assert_array_equal(again[1], obs)
