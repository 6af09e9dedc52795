"""The Multi-Power Law: schedules as the law needs them, gradients, a known law found again, the public curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.inference.fit_law import fit_law
from analysis.laws.base import Array
from analysis.laws.multi_power import MultiPower, Schedules
from tests.analysis import studies

LAW = {"L_0": 3.04, "A": 0.525, "alpha": 0.508, "B": 363.8, "C": 2.066, "beta": 0.583, "gamma": 0.641}
CONSTANTS = np.array([[LAW[name] for name in MultiPower.names]])
WARM = np.linspace(0.0, 3e-4, 101)


def cosine(steps: int) -> Array:
    t = np.arange(steps)
    return np.concatenate((WARM, 3e-5 + 1.35e-4 * (1 + np.cos(np.pi * t / steps))))


def drop(steps: int, at: int, rate: float) -> Array:
    return np.concatenate((WARM, np.where(np.arange(steps) < at, 3e-4, rate)))


def exact(rates: Array, step: int) -> float:
    """Return the law's loss as the paper writes it: a double loop over steps."""
    fall = 0.0
    for k in range(1, step + 1):
        since = rates[k : step + 1].sum()
        if rates[k] > 0:
            gain = 1 - (1 + LAW["C"] * rates[k] ** -LAW["gamma"] * since) ** -LAW["beta"]
            fall += (rates[k - 1] - rates[k]) * gain
    return float(LAW["L_0"] + LAW["A"] * rates[: step + 1].sum() ** -LAW["alpha"] - LAW["B"] * fall)


def predicted(curves: list[tuple[Array, Any]], stride: int) -> Array:
    law = MultiPower(Schedules.of(curves, stride))
    count = sum(len(steps) for _, steps in curves)
    x = np.log(np.arange(count) + 1.0)[None]
    return np.asarray(np.exp(law.log_value(law.internal(CONSTANTS, np.zeros(1)), x))[0])


def test_the_law_is_the_papers_double_sum() -> None:
    steps = np.array([150, 400, 900, 1099])
    for rates in (cosine(1000), drop(1000, 500, 9e-5)):
        values = [exact(rates, int(step)) for step in steps]
        np.testing.assert_allclose(predicted([(rates, steps)], 1), values, rtol=1e-12)
        np.testing.assert_allclose(predicted([(rates, steps)], 8), values, rtol=2e-4)


def test_gradients_agree_with_differences() -> None:
    steps = np.arange(150, 1100, 50)
    law = MultiPower(Schedules.of([(cosine(1000), steps), (drop(1000, 500, 9e-5), steps)], 8))
    x = np.log(np.arange(2 * len(steps)) + 1.0)[None]
    theta = law.internal(CONSTANTS, np.zeros(1))
    np.testing.assert_allclose(law.natural(theta, np.zeros(1)), CONSTANTS)
    shifts = 1e-6 * np.eye(7)
    slopes = np.stack([(law.log_value(theta + s, x) - law.log_value(theta - s, x))[0] / 2e-6 for s in shifts], axis=1)
    np.testing.assert_allclose(law.jacobian(theta, x)[0], slopes, rtol=1e-5, atol=1e-8)
    weights = np.random.default_rng(0).normal(size=(1, 2 * len(steps)))
    np.testing.assert_allclose(law.log_value_and_pull(theta, x)[1](weights)[0], weights[0] @ slopes, rtol=1e-5)


def test_a_law_fitted_on_two_schedules_predicts_a_third() -> None:
    steps = np.arange(150, 1100, 25)
    shown = [(cosine(1000), steps), (drop(1000, 500, 9e-5), steps), (drop(1000, 2000, 3e-4), steps)]
    law = MultiPower(Schedules.of(shown, 8))
    losses = predicted(shown, 8)
    fit = fit_law({"observation": np.arange(len(losses)) + 1.0, "loss": losses}, law, resamples=0, starts=3)
    assert np.abs(fit.resid).max() < 1e-4
    new = [(drop(1000, 300, 3e-5), steps)]
    other = law.on(Schedules.of(new, 8))
    x = np.log(np.arange(len(steps)) + 1.0)[None]
    np.testing.assert_allclose(np.exp(other.log_value(fit.point.theta[None], x))[0], predicted(new, 8), rtol=2e-3)
    with pytest.raises(ValueError, match="step 2000 lies outside its schedule of 1101 steps"):
        Schedules.of([(cosine(1000), np.array([2000]))])


def test_losses_in_mid_schedule_are_too_high_and_more_so_for_larger_models() -> None:
    curves = pd.read_csv(studies.public("lr_schedule_curves_mpl/curves.csv"))
    shares = []
    for millions, gap in ((25, 0.0364), (100, 0.0448), (400, 0.0595)):
        own = curves[curves["model_millions"] == millions].set_index("schedule")
        final = float(own[own.index == "cosine_24000"]["loss"].iloc[-1])
        long: Any = own.loc["cosine_72000"]
        middle = float(long["loss"].iloc[int((long["step"] - 23920).abs().argmin())])
        assert middle - final == pytest.approx(gap, abs=1e-3)
        shares.append(middle / final - 1)
    assert shares == sorted(shares)
    assert shares[0] > 0.01
