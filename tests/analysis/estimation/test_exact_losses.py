"""Losses beside 40-digit numbers, numerical minima and the likelihoods that they stand for."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from analysis.estimation import objectives
from analysis.estimation.objectives import Absolute, Array, Huber, Linear, Loss, Squared, StudentT

RESIDUAL = np.array([[0.3, -0.02, 0.0071, 0.0, -0.0009, 1.4], [-0.5, 0.2, 0.11, -0.03, 0.0004, 0.06]])
WEIGHTS = np.array([[1.0, 2.0, 0.0, 1.0, 1.0, 3.0], [0.0, 1.0, 1.0, 4.0, 1.0, 2.0]])
ALL: tuple[Loss, ...] = (Huber(0.05), Squared(), Absolute(0.01), StudentT(), StudentT(5.0))


def rho(loss: Loss, r: float) -> mpmath.mpf:
    x = mpmath.mpf(r)
    if isinstance(loss, Huber):
        d = mpmath.mpf(loss.delta)
        return x * x / 2 if abs(x) <= d else d * (abs(x) - d / 2)
    if isinstance(loss, Absolute):
        c = mpmath.mpf(loss.corner)
        return mpmath.sqrt(x * x + c * c) - c
    return x * x / 2


def student(df: float, residual: Array, weights: Array) -> float:
    """Return minus the log likelihood at the best scale, less its constant, by a search over ln scale."""

    def at(u: float) -> float:
        return float((weights * (0.5 * (df + 1) * np.log1p(residual**2 / (df * np.exp(2 * u))) + u)).sum())

    grid = np.linspace(-12, 2, 300)
    best = grid[np.argmin([at(u) for u in grid])]
    found = optimize.minimize_scalar(at, bounds=(best - 0.1, best + 0.1), method="bounded", options={"xatol": 1e-12})
    return float(found.fun)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.text)
@pytest.mark.parametrize("weighted", [False, True])
def test_objectives_are_sums_of_what_they_say(loss: Loss, weighted: bool) -> None:
    weights = WEIGHTS if weighted else np.ones_like(RESIDUAL)
    total, _ = loss.summed(RESIDUAL, WEIGHTS if weighted else None)
    assert total.shape == (2,)
    for row in range(2):
        if isinstance(loss, StudentT):
            expected = student(loss.df, RESIDUAL[row], weights[row])
        else:
            expected = float(sum(w * rho(loss, r) for r, w in zip(RESIDUAL[row], weights[row], strict=True)))
        assert float(total[row]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.text)
@pytest.mark.parametrize("weighted", [False, True])
def test_slopes_and_bends_are_derivatives(loss: Loss, weighted: bool) -> None:
    weights = WEIGHTS if weighted else None
    residual = RESIDUAL + 0.003  # away from Huber's corners
    _, psi = loss.summed(residual, weights)
    own, mixed = loss.bend(residual, weights)
    step, n = 1e-6, residual.shape[1]
    slope, second = np.empty_like(residual), np.empty((2, n, n))
    for k in range(n):
        up, down = residual.copy(), residual.copy()
        up[:, k] += step
        down[:, k] -= step
        (high, high_psi), (low, low_psi) = loss.summed(up, weights), loss.summed(down, weights)
        slope[:, k] = (high - low) / (2 * step)
        second[:, :, k] = (high_psi - low_psi) / (2 * step)
    np.testing.assert_allclose(psi, slope, rtol=1e-6, atol=1e-7)
    whole = own[:, :, None] * np.eye(n)
    if mixed is not None:
        whole = whole - mixed[:, :, None] * mixed[:, None, :]
    np.testing.assert_allclose(whole, second, rtol=1e-6, atol=2e-6 * np.abs(second).max())


def test_hubers_corner_belongs_to_the_square() -> None:
    loss = Huber(0.5)
    np.testing.assert_array_equal(loss.second(np.array([[-0.6, -0.5, 0.2, 0.5, 0.500001]])), [[0, 1, 1, 1, 0]])
    value, slope = loss(np.array([0.25, -2.0, 0.5]))
    np.testing.assert_array_equal(value, [0.03125, 0.875, 0.125])
    np.testing.assert_array_equal(slope, [0.25, -0.5, 0.5])


def test_names_scales_and_constants() -> None:
    assert [loss.text for loss in (Huber(), Squared(), Absolute(), StudentT())] == [
        "huber(log residual, delta=0.001)", "squared(log residual)", "l1(log residual)",
        "student_t(log residual, df=3, scale fitted)",
    ]  # fmt: skip
    assert [loss.extra for loss in ALL] == [1] * 5
    assert [loss.straight for loss in ALL] == [True, False, True, False, False]
    # Scales: the largest pull where there is one, else that of a residual of 0.1 % or 1 %.
    assert (Huber(0.02).scale, Absolute().scale, Squared().scale, StudentT().scale) == (0.02, 1.0, 1e-3, 100.0)
    one = np.full((1, 8), 0.01)
    np.testing.assert_allclose(StudentT().summed(one, None)[1], StudentT().scale)
    assert Absolute().corner == 1e-6
    assert StudentT().df == 3.0


def test_losses_by_name() -> None:
    assert objectives.named("huber") == Huber(1e-3)
    assert objectives.named("huber", 0.5) == Huber(0.5)
    assert (objectives.named("squared"), objectives.named("l1"), objectives.named("student_t")) == (
        Squared(), Absolute(), StudentT(),
    )  # fmt: skip
    own = Huber(3.0)
    assert objectives.named(own, -1.0) is own
    with pytest.raises(ValueError, match="huber, student_t, l1, squared, linear"):
        objectives.named("cauchy")
    for delta in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="a positive number of log residual"):
            objectives.named("huber", delta)
    assert objectives.named("huber", 0.9) == Huber(0.9)


@pytest.mark.parametrize("share", [1e-3, 0.1, 1.0, 30.0])
def test_hubers_likelihood(share: float) -> None:
    """Max over tau of -objective/tau - n ln of the integral of exp(-rho/tau), the integral by quadrature."""
    delta, n = 0.3, 17
    loss = Huber(delta)
    objective = share * n * delta**2

    def minus(log_tau: float) -> float:
        tau = math.exp(log_tau)

        def density(r: float) -> float:
            return math.exp(-float(loss(np.array(r))[0]) / tau)

        ends = [(0, delta), (delta, delta + 3 * tau / delta), (delta + 3 * tau / delta, delta + 60 * tau / delta)]
        whole = 2 * sum(integrate.quad(density, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in ends)
        return objective / tau + n * math.log(whole)

    rough = min(np.linspace(-12, 5, 35), key=minus)
    found = optimize.minimize_scalar(minus, bounds=(rough - 0.6, rough + 0.6), method="bounded",
                                     options={"xatol": 1e-9})  # fmt: skip
    assert loss.llf_of(objective, n) == pytest.approx(-float(found.fun), rel=1e-10, abs=1e-9)


@pytest.mark.parametrize("loss", [Huber(), Squared(), Absolute(), StudentT(), Linear()], ids=lambda loss: loss.text)
def test_an_objective_without_end_has_no_likelihood(loss: Loss) -> None:
    assert loss.llf_of(math.inf, 17) == -math.inf


def test_hubers_likelihood_of_an_exact_fit_ends() -> None:
    """Residuals below 1e-15 are the rounding of logs: there the likelihood is the normal one of that spread."""
    normal = -0.5 * 9 * (math.log(2 * math.pi * 2e-30) + 1)
    assert Huber(0.3).llf_of(0.0, 9) == pytest.approx(normal, rel=1e-9)
    assert Huber(0.3).llf_of(9e-30, 9) == pytest.approx(normal, rel=1e-9)
    assert Huber(0.3).llf_of(9e-28, 9) == pytest.approx(normal - 0.5 * 9 * math.log(100), rel=1e-9)


def test_other_likelihoods() -> None:
    r = RESIDUAL[1]
    n = len(r)
    squared = float(Squared().summed(r[None], None)[0][0])
    assert Squared().llf_of(squared, n) == pytest.approx(stats.norm.logpdf(r, 0, np.sqrt((r**2).mean())).sum())
    assert Squared().llf_of(0.0, 4) == pytest.approx(-2.0 * (math.log(2 * math.pi * 1e-300) + 1.0))
    absolute = float(np.abs(r).sum())
    assert Absolute().llf_of(absolute, n) == pytest.approx(stats.laplace.logpdf(r, 0, absolute / n).sum())
    assert Absolute().llf_of(0.0, 4) == pytest.approx(-4.0 * (math.log(2e-300) + 1.0))
    for df in (3.0, 5.0):
        total = float(StudentT(df).summed(r[None], None)[0][0])

        def minus(u: float, df: float = df) -> float:
            return -float(stats.t.logpdf(r, df, 0, np.exp(u)).sum())

        best = optimize.minimize_scalar(minus, bounds=(-6, 2), method="bounded", options={"xatol": 1e-10})
        assert StudentT(df).llf_of(total, n) == pytest.approx(-float(best.fun), rel=1e-12)


@pytest.mark.parametrize("spread", [1e-9, 1e-3, 40.0])
@pytest.mark.parametrize("outlier", [1.0, 1e4])
def test_the_scale_of_students_t_is_its_root(spread: float, outlier: float) -> None:
    """To all digits: steps that were too long or too short would end a billionth away."""
    generator = np.random.default_rng(0)
    r = spread * generator.standard_t(3, size=(3, 23))
    r[:, 0] *= outlier
    w = generator.integers(1, 4, size=r.shape).astype(float)
    loss = StudentT()
    u = loss._log_scale(r, w)
    for row in range(3):
        square, weight = [mpmath.mpf(float(v)) ** 2 for v in r[row]], [mpmath.mpf(float(v)) for v in w[row]]

        def excess(s: mpmath.mpf, square=square, weight=weight) -> mpmath.mpf:  # type: ignore[no-untyped-def]
            return sum(v * (4 * q / (3 * mpmath.exp(2 * s) + q) - 1) for q, v in zip(square, weight, strict=True))

        assert float(u[row]) == pytest.approx(float(mpmath.findroot(excess, float(u[row]))), abs=2e-14, rel=1e-14)


def test_the_scale_of_residuals_that_are_rounding_has_a_floor() -> None:
    loss = StudentT()
    np.testing.assert_array_equal(loss._log_scale(np.zeros((1, 5)), np.ones((1, 5))), [-30.0])
    total, psi = loss.summed(np.zeros((1, 5)), None)
    assert float(total[0]) == -150.0
    assert not psi.any()
    own, mixed = loss.bend(np.zeros((1, 5)), None)
    np.testing.assert_allclose(own, 4 / (3 * np.exp(-60.0)))
    assert mixed is not None
    np.testing.assert_array_equal(mixed, np.zeros((1, 5)))
    tiny = np.full((1, 5), 1e-16)
    assert float(loss._log_scale(tiny, np.ones((1, 5)))[0]) == -30.0
    assert float(loss._log_scale(tiny * 1e4, np.ones((1, 5)))[0]) == pytest.approx(np.log(1e-12), rel=1e-12)


def test_students_pull_keeps_the_scale_of_the_residuals() -> None:
    loss = StudentT(5.0)
    at = np.array([[0.1, -3.0, 0.02, 0.5, 0.0, 1.0]])
    s = np.exp(loss._log_scale(RESIDUAL[1:], np.ones((1, 6))))[0]
    np.testing.assert_allclose(loss.pull(at, RESIDUAL[1:]), 6.0 * at / (5.0 * s**2 + at**2), rtol=1e-14)
    np.testing.assert_allclose(loss.pull(RESIDUAL[1:], RESIDUAL[1:]), loss.summed(RESIDUAL[1:], None)[1], rtol=1e-13)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: loss.text)
def test_pulls_about_the_location_sum_to_zero(loss: Loss) -> None:
    r = np.array([0.9, -0.21, 0.33, 0.05, 0.12, -0.4, 0.07])
    found = objectives.location(loss, r)
    assert abs(float(loss.summed((r - found)[None], None)[1].sum())) < 1e-9 * loss.scale
    assert objectives.location(loss, r + 3.0) == pytest.approx(found + 3.0, rel=1e-9)
    assert objectives.location(loss, -r) == pytest.approx(-found, rel=1e-9)


def test_locations_by_hand() -> None:
    r = np.array([0.0, 1.0, 5.0])
    assert objectives.location(Squared(), r) == pytest.approx(2.0, rel=1e-9)
    assert objectives.location(Huber(0.1), r) == pytest.approx(1.0, rel=1e-9)
    # m - 0 + clip(m - 1) + clip(m - 5) = 0 with the last at its limit of 2: 2 m = 3.
    assert objectives.location(Huber(2.0), r) == pytest.approx(1.5, rel=1e-9)
    # Between the two middle ones of four, all that far from the others, every location balances: their middle.
    assert objectives.location(Huber(0.25), np.array([0.0, 1.0, 4.0, 9.0])) == pytest.approx(2.5, rel=1e-9)
