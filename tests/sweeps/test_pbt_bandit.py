"""PB2: the Gaussian process against its formulas, what it chooses, and a population that explores by it."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from benchmarks.pbt_toys import figure_2, lowest, noisy_quadratic
from sweeps.history import Config, Event, Reported, Started, Unit
from sweeps.replay.decisions import decisions
from sweeps.schedulers import pb2
from sweeps.schedulers.drifting_gp import GRID, Floats, Kernel, Posterior, likeliest, likelihoods
from sweeps.schedulers.pb2 import Stretch
from sweeps.schedulers.pbt import PbtRules, PopulationBased
from sweeps.space import Choice, Condition, Integers, Interval, Space
from tests.sweeps.searches import drive, driven_and_retold, noise

LR = Space({"lr": Interval(1e-4, 1e-1, log=True)})
SPACE = Space(
    {
        "kind": Choice(("a", "b")),
        "lr": Interval(1e-4, 1e-1, log=True),
        "momentum": Interval(0.5, 0.99),
        "layers": Integers(1, 4),
        "decay": Interval(0.0, 0.3),
    },
    {"momentum": Condition("kind", ("b",))},
)
seeds = st.integers(0, 10_000)


def population(seed: int = 0, members: int = 10, space: Space = SPACE, **rules: Any) -> PopulationBased:
    return PopulationBased(space, members, 60, PbtRules(5, **{"explore": "pb2", **rules}), seed)


def observed(count: int = 12) -> tuple[Floats, Floats, Floats]:
    random = np.random.default_rng(3)
    x = random.random((count, 2))
    t = np.array([k // 3 for k in range(count)], dtype=float)
    y: Floats = np.sin(5 * x[:, 0] + 0.3 * t) + 0.1 * random.standard_normal(count)
    return x, t, y


def covariance(kernel: Kernel, a: Floats, s: float, b: Floats, t: float) -> float:
    """The paper's kernel as it is written, for a signal of variance 1 - noise."""
    near = math.exp(-sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / (2 * kernel.width**2))
    return (1 - kernel.noise) * near * math.pow(1 - kernel.forget, abs(s - t) / 2)


def matrix(kernel: Kernel, x: Floats, t: Floats, other: Floats, then: Floats) -> Floats:
    columns = list(zip(other, then, strict=True))
    return np.array([[covariance(kernel, a, s, b, u) for b, u in columns] for a, s in zip(x, t, strict=True)])


@pytest.mark.parametrize("kernel", [Kernel(0.3, 0.1, 0.05), Kernel(0.1, 0.4, 0.4), Kernel(1.0, 0.0, 0.01)])
def test_mean_and_variance_are_those_of_the_formulas(kernel: Kernel) -> None:
    x, t, y = observed()
    places, times = np.random.default_rng(1).random((7, 2)), np.array([4.0] * 7)
    inverse = np.linalg.inv(matrix(kernel, x, t, x, t) + kernel.noise * np.eye(len(x)))
    cross = matrix(kernel, places, times, x, t)
    found = Posterior(kernel, x, t, y)
    # The jitter of 1e-8 is at most 1e-6 of the noise, on which the inverse's smallest eigenvalues stand.
    np.testing.assert_allclose(kernel.between(places, times, x, t), cross, rtol=1e-12)
    np.testing.assert_allclose(found.mean(places, times), cross @ inverse @ y, rtol=1e-4, atol=1e-5)
    variance = 1 - kernel.noise - np.diag(cross @ inverse @ cross.T)
    np.testing.assert_allclose(found.variance(places, times), variance, rtol=1e-4, atol=1e-6)


def test_what_is_under_way_lowers_the_variance_and_moves_no_mean() -> None:
    kernel, (x, t, y) = Kernel(0.3, 0.1, 0.05), observed()
    out, now = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([4.0, 3.0])
    places, times = np.random.default_rng(1).random((7, 2)), np.array([4.0] * 7)
    known = Posterior(kernel, x, t, y)
    expected = known.expecting(out, now)
    np.testing.assert_allclose(expected.mean(places, times), known.mean(places, times), atol=1e-5)
    both, when = np.concatenate([x, out]), np.concatenate([t, now])
    inverse = np.linalg.inv(matrix(kernel, both, when, both, when) + kernel.noise * np.eye(len(both)))
    cross = matrix(kernel, places, times, both, when)
    variance = 1 - kernel.noise - np.diag(cross @ inverse @ cross.T)
    np.testing.assert_allclose(expected.variance(places, times), variance, rtol=1e-4, atol=1e-6)
    assert (expected.variance(places, times) <= known.variance(places, times) + 1e-12).all()
    assert (expected.variance(out, now) < 0.5 * known.variance(out, now)).all()


def test_the_kernel_is_the_one_that_makes_the_observations_most_likely() -> None:
    x, t, y = observed()
    direct = [
        multivariate_normal(np.zeros(len(x)), matrix(k, x, t, x, t) + k.noise * np.eye(len(x))).logpdf(y) for k in GRID
    ]
    np.testing.assert_allclose(likelihoods(x, t, y), direct, rtol=1e-4)
    assert likeliest(x, t, y) == GRID[int(np.argmax(direct))]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([1.0, 2.0, 3.0], [-math.sqrt(1.5), 0.0, math.sqrt(1.5)]),
        ([1.0, math.nan, 3.0], [-1.0, -1.0, 1.0]),
        ([2.0, 2.0, 2.0], [0.0, 0.0, 0.0]),
        # A loss of 8 among losses of -1, -1, -2, -3 counts as 3: from the best, three times the way to the middle one.
        ([-8.0, 1.0, 1.0, 2.0, 3.0], [gain / math.sqrt(4.16) for gain in (-3.8, 0.2, 0.2, 1.2, 2.2)]),
    ],
)
def test_gains_are_normalised_and_what_diverged_is_the_worst(gains: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(pb2.normalised(gains), expected, atol=1e-12)


def test_one_loss_far_above_the_others_does_not_hide_what_they_say() -> None:
    found = pb2.normalised([0.1, 0.2, 0.3, 0.4, 0.5, -1e9])
    assert np.ptp(found[:5]) > 0.5
    assert found[5] == found.min()


def line(best: float, count: int = 30) -> list[Stretch]:
    """Stretches whose gain is highest at one place of the learning rates' interval."""
    random = np.random.default_rng(2)
    places = random.random(count)
    return [Stretch({"lr": LR.domains["lr"].at(p)}, k // 5, 1 - 4 * (p - best) ** 2) for k, p in enumerate(places)]


def choose(seen: list[Stretch], under_way: list[Stretch], taken: list[Config], seed: int = 0) -> float:
    random = np.random.default_rng(seed)
    found = pb2.chosen(LR, {"lr": 1e-4}, 6.0, seen, under_way, taken=taken, random=random)
    assert found is not None
    return LR.domains["lr"].unit(found["lr"])


@pytest.mark.parametrize("best", [0.2, 0.5, 0.8])
def test_what_has_gained_most_is_chosen_by_its_logarithm(best: float) -> None:
    # The bound is wide: after 30 observations 1.6 standard deviations, a few hundredths where it is well known.
    assert choose(line(best), [], []) == pytest.approx(best, abs=0.15)


def test_copies_made_at_once_differ() -> None:
    seen, chosen = line(0.5, count=8), list[float]()
    for _ in range(4):
        out = [Stretch({"lr": LR.domains["lr"].at(p)}, 6.0, math.nan) for p in chosen]
        chosen.append(choose(seen, out, []))
    assert min(abs(a - b) for k, a in enumerate(chosen) for b in chosen[:k]) > 1e-3
    first = LR.domains["lr"].at(chosen[0])
    assert choose(seen, [], [{"lr": first}]) != chosen[0]  # and never what was made of the same weights


def test_too_little_to_learn_from_leaves_it_to_the_plain_explore_step() -> None:
    seen = line(0.5)[:4] + [Stretch({"lr": 0.1}, 0.0, math.nan)] * 3
    assert pb2.chosen(LR, {"lr": 1e-4}, 6.0, seen, [], taken=[], random=np.random.default_rng(0)) is None
    mine, plain = population(3), population(3, explore="perturb")
    log = drive(mine, noise(3), 30, 3, workers=1)
    begun = next(k for k, event in enumerate(log) if isinstance(event, Started) and event.unit.parent is not None)
    assert len([e for e in log[:begun] if isinstance(e, Reported) and e.resource > 5]) < pb2.ENOUGH
    assert decisions(plain, log[: begun + 1]) == sum(isinstance(e, Started) for e in log[: begun + 1])


def wild(seed: int) -> Any:
    """Values of which some are not finite and some are huge."""
    usual = noise(seed)

    def value(trial: int, resource: int) -> float:
        drawn = np.random.default_rng([seed, trial, resource]).random()
        return math.nan if drawn < 0.1 else 1e12 if drawn < 0.15 else usual(trial, resource)

    return value


@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_choices_stay_in_the_domain_and_replays_make_the_same(seed: int) -> None:
    scheduler, again, calm = driven_and_retold(partial(population, seed), wild(seed), 70, seed)
    assert calm.lineage == again.lineage == scheduler.lineage
    made = []
    for copy in scheduler.lineage:
        assert all(SPACE.domains[name].holds(value) for name, value in copy.config.items())
        assert set(copy.config) == {"kind", "lr", "layers", "decay"} | ({"momentum"} & set(copy.config))
        assert ("momentum" in copy.config) == (copy.config["kind"] == "b")
        made.append((copy.donor, copy.resource, tuple(copy.config.items())))
    assert len(set(made)) == len(made)  # no two copies of the same weights are the same point


@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_no_decision_looks_ahead(seed: int) -> None:
    """Two histories that agree up to a report agree in all decisions up to it."""
    one, other = noise(seed), noise(seed + 1)

    def value(trial: int, resource: int, later: Callable[[int, int], float]) -> float:
        return (one if resource <= 25 else later)(trial, resource) - 0.1 * resource

    logs = [drive(population(seed, 5), partial(value, later=later), 50, seed) for later in (one, other)]
    ends = [
        min(k for k, event in enumerate(log) if isinstance(event, Reported) and event.resource > 25) for log in logs
    ]
    assert ends[0] == ends[1]
    before: list[list[Event]] = [log[: ends[0]] for log in logs]
    assert before[0] == before[1]
    assert any(isinstance(event, Started) and event.unit.parent is not None for event in before[0])


def test_asking_again_changes_nothing() -> None:
    scheduler = population(5)
    drive(scheduler, noise(5), 40, 5)
    units: list[list[Unit]] = [list(scheduler.candidates()) for _ in range(2)]
    assert units[0] == units[1]
    assert any(unit.parent is not None for unit in units[0])


def test_where_the_best_rate_falls_all_the_time_copying_pays_with_either_explore_step() -> None:
    toy = noisy_quadratic()
    none, plain, ours = (
        np.mean([lowest(toy, seed, explore, 4, steps=100) for seed in range(40)])
        for explore in ("none", "perturb", "pb2")
    )
    # -1.63, -2.22 and -2.34 as measured; the standard error of the first is 0.14, of the others below 0.1.
    assert plain < none - 0.3
    assert ours < none - 0.4


def test_the_papers_toy_problem_is_solved_by_both() -> None:
    """Without PBT it ends at 0.390; the best value is 1.2."""
    plain = [-lowest(figure_2(), seed, "perturb", 2, steps=200) for seed in range(200)]
    assert np.mean(plain) >= 1.195
    assert np.mean([-lowest(figure_2(), seed, "pb2", 2, steps=200) for seed in range(4)]) >= 1.195


@pytest.mark.parametrize("workers", [2, 8])
def test_a_population_is_as_good_where_its_members_are_ahead_of_one_another(workers: int) -> None:
    toys = ((figure_2(), 2, 200, 40, -1.195), (noisy_quadratic(), 8, 100, 20, -2.2))
    for toy, members, steps, seeds, most in toys:
        found = [lowest(toy, seed, "perturb", members, steps=steps, workers=workers) for seed in range(seeds)]
        assert np.mean(found) <= most
    # One that is ahead of the others was trained by other times, and to the same end.
    alone = [lowest(noisy_quadratic(), seed, "none", 8, steps=100) for seed in range(5)]
    assert alone == [lowest(noisy_quadratic(), seed, "none", 8, steps=100, workers=workers) for seed in range(5)]


@pytest.mark.parametrize("bad", [{"explore": "bandit"}, {"space": Space({"kind": Choice(("a", "b"))})}])
def test_an_explore_step_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="explore="):
        population(**bad)
