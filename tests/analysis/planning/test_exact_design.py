"""The choice of runs: Gaussian conditioning by the textbook, drops by brute force, greedy batches by hand."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimation import fit_problem, multistart, objectives
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from analysis.planning import posterior, priors, run_noise
from analysis.planning.posterior import Basin, Choice, Posterior
from tests.analysis import studies

TABLE = studies.isoflop(3, noise=0.01)
COLUMNS = (TABLE["params"].to_numpy(), TABLE["tokens"].to_numpy())


def made(root: Any = None, noise: float = 0.003, misfit: float = 0.02, second: float = 0.0) -> Posterior:
    """Return a posterior at the true law, and with `second` another basin of that weight."""
    p = fit_problem.problem(SURFACE, COLUMNS, TABLE["loss"].to_numpy(), objectives.Squared())
    theta = SURFACE.internal(np.array([studies.LAW]), p.centres)[0]
    basins = [Basin(theta, 1.0 - second)]
    if second:
        basins.append(Basin(theta + np.array([-0.2, 0.1, 0.05, 0.02, -0.03]), second))
    return Posterior(SURFACE, p.centres, p.x, tuple(basins), noise, misfit, root)


def test_places_are_the_forms_logs() -> None:
    found = made()
    place = found.to_logs(([1e6, 1e7], [2e7, 3e9]))
    np.testing.assert_allclose(place, np.log([[1e6, 1e7], [2e7, 3e9]]) - found.centres[:, None])
    want = studies.loss(studies.LAW, np.array([1e6, 1e7]), np.array([2e7, 3e9]))
    np.testing.assert_allclose(np.exp(found.means(place)[0]), want)
    assert made(second=0.25).weights.tolist() == [0.75, 0.25]
    assert made(second=0.25).means(place).shape == (2, 2)


def test_the_error_of_the_form_is_alike_nearby() -> None:
    found = made(misfit=0.02)
    a, b = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [2.0]])
    want = 0.02**2 * np.exp([[-0.5 * 4 / 4], [-0.5 * 5 / 4]])
    np.testing.assert_allclose(posterior.alike(found, a, b), want)


@pytest.mark.parametrize("wide", [True, False])
def test_covariances_by_conditioning_a_joint_gaussian(wide: bool) -> None:
    root = None if wide else np.diag([0.3, 0.5, 0.4, 0.06, 0.06])
    found = made(root)
    at = found.to_logs(([1e6, 3e7], [4e7, 1e9]))
    both = np.concatenate((found.x, at), axis=1)
    slopes = SURFACE.jacobian(found.basins[0].theta[None], both)[0]
    prior = 9.0 * np.eye(5) if root is None else root @ root.T
    joint = slopes @ prior @ slopes.T + posterior.alike(found, both, both)
    joint[:20, :20] += 0.003**2 * np.eye(20)
    want = joint[20:, 20:] - joint[20:, :20] @ np.linalg.inv(joint[:20, :20]) @ joint[:20, 20:]
    np.testing.assert_allclose(found.covariances(at)[0], want, rtol=1e-4, atol=1e-9)


def test_a_forecast_is_that_of_the_mixture() -> None:
    found = made(second=0.3)
    at = found.to_logs(([1e8, 1e6], [1e9, 1e8]))
    mean, spread = posterior.forecast(found, at)
    means, covariances = found.means(at), found.covariances(at)
    for k in range(2):
        middle = 0.7 * means[0, k] + 0.3 * means[1, k]
        assert mean[k] == pytest.approx(middle)
        second = sum(w * (c[k, k] + m[k] ** 2) for w, c, m in zip((0.7, 0.3), covariances, means, strict=True))
        assert spread[k] ** 2 == pytest.approx(second - middle**2, rel=1e-6)


def state(covariance: Any, means: Any = None, weights: Any = (1.0,), targets: int = 1, noise: float = 0.0) -> Any:
    covariances = np.asarray(covariance, dtype=float)
    covariances = covariances[None] if covariances.ndim == 2 else covariances
    means = np.zeros(covariances.shape[:2]) if means is None else np.asarray(means, dtype=float)
    return posterior._State(targets, np.asarray(weights, dtype=float), means, covariances, noise)


def random_state(seed: int, basins: int = 1, targets: int = 2, pool: int = 3, noise: float = 0.3) -> Any:
    generator = np.random.default_rng(seed)
    roots = generator.normal(size=(basins, targets + pool, targets + pool))
    weights = generator.uniform(0.2, 1.0, basins)
    covariances = np.einsum("bij,bkj->bik", roots, roots)
    return state(covariances, generator.normal(size=(basins, targets + pool)), weights / weights.sum(), targets, noise)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_drops_of_one_basin_are_what_conditioning_takes_away(seed: int) -> None:
    found = random_state(seed)
    covariance = found.covariances[0]
    drops, before = found.drops(), found.variance()
    assert before == pytest.approx((covariance[0, 0] + covariance[1, 1]) / 2)
    for k in range(3):
        seen = covariance[2 + k]
        after = covariance - np.outer(seen, seen) / (covariance[2 + k, 2 + k] + 0.09)
        assert before - drops[k] == pytest.approx((after[0, 0] + after[1, 1]) / 2)
        again = random_state(seed)
        again.observe(k)
        np.testing.assert_allclose(again.covariances[0], after, atol=1e-12)
        assert again.variance() == pytest.approx(before - drops[k])


def test_variance_within_and_between_basins() -> None:
    found = state(
        [np.diag([1.0, 2.0, 9.0]), np.diag([3.0, 4.0, 9.0])], [[1.0, 0.0, 5.0], [2.0, 4.0, 5.0]], (0.25, 0.75), 2
    )
    within = 0.25 * 1.5 + 0.75 * 3.5
    between = (0.25 * 0.75 * 1.0**2 + 0.25 * 0.75 * 4.0**2) / 2
    assert found.variance() == pytest.approx(within + between)


@pytest.mark.parametrize("basins", [2, 3])
def test_seeing_a_loss_tells_basins_apart_as_brute_integration_says(basins: int) -> None:
    found = random_state(5, basins, targets=2, pool=3)
    spreads = np.sqrt(np.stack([np.diag(c)[2:] for c in found.covariances]) + 0.09)
    grid = np.linspace(-60, 60, 120_001)
    for k in range(3):
        density = np.stack([
            w / (s * np.sqrt(2 * np.pi)) * np.exp(-0.5 * ((grid - m) / s) ** 2)
            for w, m, s in zip(found.weights, found.means[:, 2 + k], spreads[:, k], strict=True)
        ])  # fmt: skip
        total = density.sum(axis=0)
        odds = density / np.maximum(total, 1e-300)
        left = np.zeros(2)
        for t in range(2):
            aims = found.means[:, t]
            centre = odds.T @ aims
            left[t] = np.trapezoid(total * (odds * (aims[:, None] - centre) ** 2).sum(axis=0), grid)
        middles = found.weights @ found.means[:, :2]
        before = (found.weights @ (found.means[:, :2] - middles) ** 2).mean()
        assert posterior._between(found, spreads)[k] == pytest.approx(before - left.mean(), rel=0.1, abs=0.004)


def test_basins_far_apart_are_told_apart_and_like_ones_are_not() -> None:
    means = [[0.0, 0.0, 5.0], [2.0, 100.0, 5.0]]
    found = state([np.eye(3), np.eye(3)], means, (0.5, 0.5), 1, 0.1)
    spreads = np.ones((2, 2))
    np.testing.assert_allclose(posterior._between(found, spreads), [1.0, 0.0], atol=1e-9)
    assert posterior._between(state(np.eye(3)), np.ones((1, 2))).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(found.drops(), [1.0, 0.0], atol=1e-9)


def pool(*values: float) -> Any:
    """Return a state of one target and candidates, each of which takes so much of its variance."""
    covariance = np.diag([100.0, *([1.0] * len(values))])
    covariance[0, 1:] = covariance[1:, 0] = np.sqrt(values)
    return state(covariance)


@pytest.mark.parametrize(
    ("power", "budget", "count", "picks"),
    [
        (0.0, 100.0, 3, [2, 1, 0]),  # by drop alone
        (1.0, 100.0, 3, [0, 1, 2]),  # by drop per FLOP
        (0.0, 100.0, 2, [2, 1]),
        (0.0, 10.0, 3, [2]),  # 10 are spent
        (0.0, 9.99, 3, [1, 0]),
        (0.0, 11.0, 3, [2, 0]),
        (0.0, 0.5, 3, []),
        (0.0, 10.0 * (1 - 1e-13), 3, [2]),  # a budget that rounding has taken from
    ],
)
def test_greedy_batches_by_hand(power: float, budget: float, count: int, picks: list[int]) -> None:
    costs = np.array([1.0, 5.0, 10.0])
    drops = {0: 2.0, 1: 6.0, 2: 9.0}
    chosen = posterior._greedy(pool(2.0, 6.0, 9.0), costs, budget, count, power)
    assert [c.index for c in chosen] == picks
    left = 100.0
    for one in chosen:
        assert one.cost == costs[one.index]
        assert one.before == pytest.approx(left)
        left -= drops[one.index]
        assert one.after == pytest.approx(left)


def test_runs_that_tell_nothing_are_not_chosen() -> None:
    assert posterior._greedy(pool(0.0, 0.0), np.ones(2), 9.0, 2, 1.0) == []
    assert [c.index for c in posterior._greedy(pool(0.0, 1.0), np.ones(2), 9.0, 2, 1.0)] == [1]


def test_the_batch_that_ends_lowest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per FLOP the small run comes first and leaves no room for the large one, which tells more."""
    monkeypatch.setattr(posterior, "_state", lambda *given: pool(2.0, 9.0))
    asked: dict[str, Any] = {"budget": 10.0, "count": 5}
    costs = np.array([1.0, 10.0])
    anything: Any = None
    assert [c.index for c in posterior.batch(anything, anything, anything, costs, power=1.0, **asked)] == [0]
    assert [c.index for c in posterior.batch(anything, anything, anything, costs, power=0.0, **asked)] == [1]
    assert posterior.batch(anything, anything, anything, costs, power=None, **asked) == [Choice(1, 10.0, 100.0, 91.0)]
    assert posterior.batch(anything, anything, anything, costs, power=None, budget=0.1, count=5) == []
    monkeypatch.setattr(posterior, "_state", lambda *given: pool(3.0, 8.9, 8.9))
    # per FLOP^0.4: 3, 8.9 / 10^0.4 = 3.54; per FLOP 3, 0.89
    costs = np.array([1.0, 10.0, 10.0])
    assert [c.index for c in posterior.batch(anything, anything, anything, costs, budget=10.0, count=5, power=0.4)] == [
        1
    ]


def test_drops_put_targets_before_candidates() -> None:
    found = made(second=0.4)
    targets, candidates = found.to_logs(([1e8], [1e9])), found.to_logs(([1e5, 1e8], [1e7, 1e9]))
    whole = posterior._state(found, candidates, targets)
    assert whole.targets == 1
    assert whole.noise == found.noise
    np.testing.assert_allclose(whole.means[:, 0], found.means(targets)[:, 0])
    assert whole.drops()[1] > whole.drops()[0]


def test_laws_that_predict_alike_are_one() -> None:
    found = made()
    p: Any = SimpleNamespace(form=SURFACE, x=found.x)
    theta = found.basins[0].theta
    off = np.array([1.0, 0, 0, 0, 0])  # of ln E, whose share of the loss is between a third and a half
    around = np.concatenate((found.x, 2 * found.x), axis=1)
    steepest = float(np.abs(SURFACE.jacobian(theta[None], around)[0][:, 0]).max())
    same, other = theta + off * 2.3e-4 / steepest, theta + off * 2.7e-4 / steepest
    assert [t.tolist() for t in posterior._distinct(p, [theta, same])] == [theta.tolist()]
    assert len(posterior._distinct(p, [theta, other, same])) == 2
    assert len(posterior._distinct(p, [theta, other, theta + off * 5.2e-4 / steepest])) == 3
    assert posterior._distinct(p, []) == []
    wild = np.array([0.0, 0.0, 0.0, 800.0, 0.0])
    with np.errstate(invalid="raise"):
        assert [t.tolist() for t in posterior._distinct(p, [wild, 1.1 * wild])] == [wild.tolist()]


@pytest.mark.parametrize("form", ["kaplan", "chinchilla"])
def test_basins_weigh_by_likelihood_prior_and_volume(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law = FORMS[form]
    p = fit_problem.problem(law, COLUMNS, TABLE["loss"].to_numpy(), objectives.Squared())
    best = multistart.fit_point(p, 4)
    assert best.minima is not None
    moved = np.zeros(len(law.names))
    moved[-1] = 0.002
    far = moved * 400
    thetas = np.stack((best.theta + moved, best.theta, best.theta + far, best.theta + 3 * moved))
    minima = replace(best.minima, theta=thetas, value=np.array([2.0, 1.0, 3.0, np.inf]))
    monkeypatch.setattr(multistart, "fit_point", lambda *given: replace(best, minima=minima))
    monkeypatch.setattr(priors, "most_likely", lambda problem, theta, given: theta)
    found = posterior.posterior(p, 4)
    assert found.form is law
    np.testing.assert_array_equal(found.x, p.x)
    given_ = found.prior
    assert given_ is not None
    sums = {
        name: float(((law.log_value(t[None], p.x)[0] - p.y) ** 2).sum())
        for name, t in (("best", thetas[1]), ("near", thetas[0]))
    }
    misfit = max(1e-3, priors.misfit(min(sums.values()), 20, len(moved)))
    # The scatter around the heaviest basin: what it is beyond that of seeds is taken off the form's error.
    heaviest = found.basins[0].theta
    slopes = law.jacobian(heaviest[None], p.x)[0]
    gaps = p.y - law.log_value(heaviest[None], p.x)[0] - slopes @ (given_.middle - heaviest)
    besides = slopes @ given_.root @ given_.root.T @ slopes.T + posterior.alike(replace(found, misfit=misfit), p.x, p.x)
    assert found.noise == pytest.approx(run_noise.scatter(besides, gaps), rel=1e-4)
    left = min(sums.values()) - (20 - len(moved)) * (found.noise**2 - 2e-3**2)
    assert found.misfit == pytest.approx(max(1e-3, priors.misfit(max(left, 0.0), 20, len(moved))))
    assert found.misfit < misfit
    assert found.root is not None
    np.testing.assert_array_equal(found.root, priors.prior(p, best.theta).root)
    logs = []
    for name, theta in (("best", thetas[1]), ("near", thetas[0])):
        slope = law.jacobian(theta[None], p.x)[0]
        volume = np.linalg.slogdet(slope.T @ slope / misfit**2 + given_.precision)[1]
        told = given_.penalty(theta) if given_.told else 0.0
        logs.append(-0.5 * (20 - len(moved)) * np.log(sums[name] + 20e-6) - told - 0.5 * volume)
    ratio = np.exp(logs[1] - logs[0])
    assert ratio > 1e-4, "both weigh something"
    assert len(found.basins) == 2
    by_theta = {tuple(basin.theta): basin.weight for basin in found.basins}
    assert by_theta[tuple(thetas[0])] / by_theta[tuple(thetas[1])] == pytest.approx(ratio, rel=1e-6)
    assert sum(by_theta.values()) == pytest.approx(1.0)
    assert found.basins[0].weight >= found.basins[1].weight


def test_evidence_of_many_runs_is_beyond_no_number() -> None:
    columns = tuple(np.tile(c, 40) for c in COLUMNS)
    p = fit_problem.problem(FORMS["kaplan"], columns, np.tile(TABLE["loss"].to_numpy(), 40), objectives.Squared())
    found = posterior.posterior(p, 2)
    assert np.isfinite(found.weights).all()
    assert found.weights.sum() == pytest.approx(1.0)
    given_ = inspect.signature(posterior.posterior).parameters
    assert (given_["starts"].default, given_["noise"].default) == (16, None)


def test_an_exact_fit_is_no_infinite_evidence() -> None:
    table = studies.isoflop(0)
    p = fit_problem.problem(
        SURFACE,
        (table["params"].to_numpy(), table["tokens"].to_numpy()),
        table["loss"].to_numpy(),
        objectives.Squared(),
    )
    found = posterior.posterior(p, 4, noise=0.5)
    assert found.noise == 0.5
    assert found.misfit == pytest.approx(max(1e-3, np.sqrt(3e-4 / 18)), rel=0.2)
    assert np.isfinite(found.weights).all()


def test_a_candidate_whose_loss_is_known_tells_nothing_and_warns_of_nothing() -> None:
    """Without any noise, and with no variance of its own: 0 over 0."""
    covariances = np.zeros((2, 3, 3))
    covariances[:, 0, 0], covariances[:, 2, 2], covariances[:, 0, 2], covariances[:, 2, 0] = 1.0, 1.0, 0.5, 0.5
    means = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    state = posterior._State(1, np.array([0.5, 0.5]), means, covariances, 0.0)
    with np.errstate(all="raise", under="ignore"):
        drops = state.drops()
        state.observe(0)
    assert drops[0] == pytest.approx(0.0, abs=1e-12) and drops[1] >= 0.25
    np.testing.assert_array_equal(state.covariances, covariances)
