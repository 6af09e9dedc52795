"""Priors: the published figures where they belong, and the highest posterior against a general optimiser."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from analysis.estimation import fit_problem, multistart, objectives
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.planning import priors
from tests.analysis import studies


def problem(form: str = "chinchilla", noise: float = 0.01, **options: Any) -> fit_problem.Problem:
    table = studies.isoflop(3, noise=noise).assign(unique_tokens=1e6)
    law = FORMS[form]
    columns = [table[name].to_numpy(dtype=float) for name in law.inputs]
    return fit_problem.problem(law, columns, table["loss"].to_numpy(), objectives.Squared(), **options)


def of_constants(p: fit_problem.Problem, given: priors.Prior) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of each constant (its log where positive) under a prior."""
    matrix, offset = p.form.link(p.centres)
    covariance = matrix @ given.root @ given.root.T @ matrix.T
    off = covariance - np.diag(np.diag(covariance))
    assert np.abs(off).max() < 1e-9, "the prior holds each constant by itself"
    means = matrix @ given.middle + offset
    return dict(zip(p.form.names, zip(means.tolist(), np.sqrt(np.diag(covariance)).tolist(), strict=True), strict=True))


def test_the_surface_knows_its_exponents_and_its_floor() -> None:
    p = problem()
    around = SURFACE.internal(np.array([[1.5, 80.0, 200.0, 0.5, 0.2]]), p.centres)[0]
    found = priors.prior(p, around)
    assert found.told
    lowest = float(np.exp(p.y.min()))
    want = {
        "E": (np.log(0.65 * lowest), 0.3), "A": (np.log(80.0), 3.0), "B": (np.log(200.0), 3.0), "alpha": (0.34, 0.06),
        "beta": (0.32, 0.06),
    }  # fmt: skip
    for name, pair in of_constants(p, found).items():
        assert pair == pytest.approx(want[name]), name


def test_half_lives_of_repeats_are_known_widely() -> None:
    p = problem("repeats")
    found = of_constants(p, priors.prior(p, np.zeros(7)))
    assert {name: found[name] for name in ("R_D", "R_N")} == {
        "R_D": pytest.approx((2.7, 1.5)), "R_N": pytest.approx((1.7, 1.5))
    }  # fmt: skip
    assert found["alpha"] == pytest.approx((0.34, 0.06))


def test_over_training_has_half_the_exponent() -> None:
    form = FORMS["overtraining"]
    table = studies.isoflop(3)
    columns = [np.full(20, 20.0) if name not in table else table[name].to_numpy(dtype=float) for name in form.inputs]
    p = fit_problem.problem(form, columns, table["loss"].to_numpy(), objectives.Squared())
    found = of_constants(p, priors.prior(p, np.zeros(len(form.names))))
    assert found["eta"] == pytest.approx((0.165, 0.03))


def test_a_link_with_an_offset_is_undone() -> None:
    """The mean is that of the constants, not of what is searched: K theta + k."""

    class Shifted:
        name, names = "chinchilla", ("E", "q", "alpha")

        def link(self, centres: Any) -> Any:
            return np.array([[2.0, 0.0, 0.0], [0.0, 1.0, 5.0], [0.0, 0.0, 1.0]]), np.array([1.0, -2.0, 0.5])

    p: Any = SimpleNamespace(form=Shifted(), centres=None, y=np.log([3.0, 2.0]))
    around = np.array([0.3, 0.7, 0.1])
    found = priors.prior(p, around)
    matrix, offset = Shifted().link(None)
    np.testing.assert_allclose(matrix @ found.middle + offset, [np.log(1.3), 0.7 + 0.5 - 2.0, 0.34])
    covariance = matrix @ found.root @ found.root.T @ matrix.T
    np.testing.assert_allclose(covariance, np.diag([0.3, 3.0, 0.06]) ** 2, atol=1e-12)


def test_of_other_laws_nothing_is_known() -> None:
    p, around = problem("kaplan"), np.arange(4.0)
    found = priors.prior(p, around)
    assert not found.told
    assert found.middle is around
    np.testing.assert_array_equal(found.root, 3.0 * np.eye(4))
    assert priors.most_likely(p, around, found) is around


def test_precision_and_penalty_of_a_gaussian() -> None:
    root = np.array([[2.0, 0.0], [1.0, 0.5]])
    given = priors.Prior(np.array([1.0, -1.0]), root, True)
    inverse = np.linalg.inv(root @ root.T)
    np.testing.assert_allclose(given.precision, inverse)
    gap = np.array([0.3, 2.0]) - given.middle
    assert given.penalty(np.array([0.3, 2.0])) == pytest.approx(0.5 * gap @ inverse @ gap)


@pytest.mark.parametrize(
    ("total", "count", "width", "error"),
    [
        (0.0, 5, 5, 0.01),  # nothing seen: the guess
        (0.0, 4, 5, 0.01),
        (0.0003, 5, 5, np.sqrt((0.0003 + 0.0003) / 3)),
        (0.0097, 12, 5, np.sqrt((0.0097 + 0.0003) / 10)),
    ],
)
def test_an_error_before_and_after_runs_show_it(total: float, count: int, width: int, error: float) -> None:
    assert priors.misfit(total, count, width) == pytest.approx(error)


@pytest.mark.parametrize("form", ["chinchilla", "repeats"])
def test_the_most_likely_law_is_the_maximum_of_the_posterior(form: str) -> None:
    p = problem(form)
    fitted = multistart.fit_point(p, 8).theta
    given = priors.prior(p, fitted)
    found = priors.most_likely(p, fitted, given)
    gap = p.form.log_value(found[None], p.x)[0] - p.y
    scale = priors.misfit(float((gap**2).sum()), 20, len(found))

    def minus_log(theta: np.ndarray) -> float:
        misses = (p.form.log_value(theta[None], p.x)[0] - p.y) / scale
        return 0.5 * float((misses**2).sum()) + given.penalty(theta)

    best = optimize.minimize(minus_log, found, method="BFGS", options={"gtol": 1e-9})
    assert minus_log(found) - float(best.fun) < 1e-3
    assert minus_log(fitted) > minus_log(found) + 0.01, "the fit alone is another law"
    assert minus_log(fitted) == pytest.approx(minus_log(fitted))


def test_a_law_with_held_constants_is_left_as_it_is() -> None:
    p = problem(fix={"E": 1.9})
    theta = multistart.fit_point(p).theta
    assert priors.most_likely(p, theta, priors.prior(p, theta)) is theta


def test_starts_at_which_the_law_has_no_number_still_lead_somewhere() -> None:
    p = problem()
    given = priors.prior(p, multistart.fit_point(p).theta)
    wild = np.array([800.0, 0.0, 0.0, 400.0, -400.0])
    found = priors.most_likely(p, wild, given)
    assert np.isfinite(found).all()


STEEP = (1.18, 293.0, 2300.0, 0.655, 0.635)
"""Exponents far beyond all that were published."""


def of_law(law: tuple[float, ...], noise: float, seed: int = 3) -> fit_problem.Problem:
    table = studies.isoflop(seed, noise=noise, law=law)
    columns = [table[name].to_numpy(dtype=float) for name in ("params", "tokens")]
    return fit_problem.problem(SURFACE, columns, table["loss"].to_numpy(), objectives.Huber())


def test_runs_that_contradict_published_laws_drop_their_prior() -> None:
    p = of_law(STEEP, 0.004)
    theta = multistart.fit_point(p).theta
    found = priors.met(p, theta)
    assert found.dropped
    assert not found.told
    assert found.chance < 0.01
    assert found.middle is theta
    np.testing.assert_array_equal(found.root, 3.0 * np.eye(5))
    constants = dict(zip(SURFACE.names, STEEP, strict=True))
    (said,) = priors.findings(found, constants)
    assert (said.code, said.level) == ("prior_conflict", "warning")
    assert "alpha 0.66 (published 0.34 +- 0.06), beta 0.64 (published 0.32 +- 0.06); of studies" in said.message
    tiny = priors.findings(priors.Prior(theta, found.root, False, 9e-5), {"R_D": 2.0, "eta": 0.5, "E": 1.0})[0].message
    assert "laws: eta 0.50 (published 0.165 +- 0.03); of studies that follow such laws, less than 0.01 % lie" in tiny


@pytest.mark.parametrize(("law", "noise"), [(studies.LAW, 0.004), (studies.LAW, 0.01), (STEEP, 0.2)])
def test_a_prior_stays_where_the_runs_follow_it_and_where_no_law_holds_over_them(
    law: tuple[float, ...], noise: float
) -> None:
    p = of_law(law, noise)
    theta = multistart.fit_point(p).theta
    found, plain = priors.met(p, theta), priors.prior(p, theta)
    assert found.told
    assert not found.dropped
    np.testing.assert_array_equal(found.root, plain.root)
    of_found, of_plain = of_constants(p, found), of_constants(p, plain)
    assert (of_found == of_plain) is (noise == 0.2), (
        "where no law holds, the best fit's coefficients are as good as any"
    )
    assert {n: of_found[n] for n in ("E", "alpha", "beta")} == {n: of_plain[n] for n in ("E", "alpha", "beta")}
    assert priors.findings(found, {}) == ()


def test_constants_of_which_nothing_is_known_lie_around_the_law_of_the_prior() -> None:
    """Around a fit whose coefficients are off by any factor, a prior that is true would be far from all runs."""
    p = problem(noise=0.003)
    far = SURFACE.internal(np.array([[1e-9, 1e9, 1.3, 1.4, 0.015]]), p.centres)[0]
    found = priors.met(p, far)
    law = priors.most_likely(p, found.middle, found)
    matrix, offset = SURFACE.link(p.centres)
    np.testing.assert_allclose((matrix @ found.middle + offset)[1:3], (matrix @ law + offset)[1:3], atol=0.05)
    assert found.chance > 0.2


def test_how_rare_runs_are_is_chi_squared_in_the_constants_that_are_known() -> None:
    """In a linear model it is the Mahalanobis distance of estimate and prior, whose covariances add up."""
    p = of_law((1.9, 60.0, 110.0, 0.40, 0.36), 0.002)
    best = priors.most_likely(p, multistart.fit_point(p).theta, priors.Prior(np.zeros(5), 1e3 * np.eye(5), True))
    found, given = priors.met(p, best), priors.prior(p, best)
    scale = priors.misfit(float(((SURFACE.log_value(best[None], p.x)[0] - p.y) ** 2).sum()), 20, 5)
    slope = SURFACE.jacobian(best[None], p.x)[0]
    of_runs = np.linalg.inv(slope.T @ slope / scale**2)
    gap = best - given.middle
    apart = gap @ np.linalg.solve(of_runs + given.root @ given.root.T, gap)
    assert found.chance == pytest.approx(stats.chi2.sf(apart, 3), rel=0.1)
    assert 0.05 < found.chance < 0.9


@pytest.mark.parametrize(("noise", "wide"), [(0.006, False), (0.018, True)])
def test_runs_that_scatter_widely_are_measured_by_their_own_scatter(noise: float, wide: bool) -> None:
    """In a linear model that is Hotelling's: the distance from the prior is F, of as few runs as are free."""
    p = of_law((1.9, 60.0, 110.0, 0.40, 0.36), noise)
    p = replace(p, x=p.x[:, ::2], y=p.y[::2])
    best = priors.most_likely(p, multistart.fit_point(p).theta, priors.Prior(np.zeros(5), 1e3 * np.eye(5), True))
    found = priors.met(p, best)
    scale = np.sqrt(priors.squares(p, best) / 5)
    assert (scale > 0.01) is np.bool_(wide)
    chi = stats.chi2.sf(priors._apart(p, best, found, priors.misfit(priors.squares(p, best), 10, 5)), 3)
    own = stats.f.sf(priors._apart(p, best, found, scale) / 3, 3, 5)
    assert found.chance == pytest.approx(own if wide else chi)
    assert own != pytest.approx(chi, rel=0.1)


def test_of_other_laws_and_held_constants_no_conflict_is_looked_for() -> None:
    p = problem("kaplan")
    assert priors.met(p, np.arange(4.0)).chance == 1.0
    held = problem(fix={"E": 1.9})
    theta = multistart.fit_point(held).theta
    assert priors.met(held, theta).told
    assert priors.met(held, theta).chance == 1.0


def test_the_prior_in_words() -> None:
    assert priors.words("chinchilla", 2.0) == ("alpha 0.34 +- 0.06, beta 0.32 +- 0.06, E 1.3 within a factor of 1.35")
    assert priors.words("repeats", 3.0) == (
        "alpha 0.34 +- 0.06, beta 0.32 +- 0.06, ln R_D 2.7 +- 1.5, ln R_N 1.7 +- 1.5, E 1.95 within a factor of 1.35"
    )
    assert "eta 0.165 +- 0.03" in priors.words("overtraining", 2.0)
    assert priors.words("kaplan", 2.0) == ""
    tied = priors.words("chinchilla_tied", 2.0)
    assert tied.endswith("E 1.3 within a factor of 1.35")
    assert tied.startswith("alpha 0.34 +- 0.06")
