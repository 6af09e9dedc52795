"""Draws and densities against distributions of scipy and sums by hand; which of the draws is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from sweeps.samplers import rung_density
from sweeps.samplers.base import Tried, fresh, identity, taken
from sweeps.samplers.grid import Grid, listed
from sweeps.samplers.random import RandomDraws
from sweeps.samplers.rung_density import DensityDraws, DensityRatio, Floats, Kernels
from sweeps.samplers.sobol import Sobol
from sweeps.space import Choice, Integers, Interval, Space
from tests.sweeps.searches import rung_of

UNIT = Space({"x": Interval(0.0, 1.0)})


def test_a_density_of_numbers_is_the_mean_of_its_kernels() -> None:
    kernels = Kernels(np.array([[0.2, 0.5], [0.6, 0.9]]), (0, 0))
    places = np.array([[0.2, 0.5], [0.35, 0.5], [0.6, 0.6]])

    def at(place: Sequence[float], wider: float) -> float:
        squares = [sum((a - b) ** 2 for a, b in zip(place, point, strict=True)) for point in kernels.points]
        return sum(math.exp(-0.5 * square / (0.15 * wider) ** 2) for square in squares) / 2

    for wider in (1.0, 3.0):
        assert kernels.at(places, wider) == pytest.approx([at(place, wider) for place in places], rel=1e-9)
    assert (kernels.at(places) == kernels.at(places, 1.0)).all()


def test_where_a_density_is_nothing_it_is_a_little_more() -> None:
    kernels = Kernels(np.zeros((1, 12)), (0,) * 12)
    assert kernels.at(np.ones((1, 12))) == pytest.approx([1e-12], rel=1e-6, abs=0.0)


@pytest.mark.parametrize(
    ("categories", "points", "dimensions", "wider", "leaves"),
    [
        (3, 1, 2, 1.0, 2 / 3),
        (3, 8, 2, 1.0, 2 / 3 / 2),
        (3, 8, 2, 3.0, 2 / 3),
        (3, 64, 2, 2.0, 2 / 3 / 2),
        (2, 32, 1, 1.0, 1 / 2 / 4),
        (5, 9, 0, 1.0, 4 / 5 / 3),
        (1, 4, 1, 1.0, 0.0),
    ],
)
def test_how_probable_another_category_is(
    categories: int, points: int, dimensions: int, wider: float, leaves: float
) -> None:
    kernels = Kernels(np.zeros((points, dimensions)), (categories,) * dimensions)
    assert kernels.leaves(categories, wider) == pytest.approx(leaves)


def test_a_density_of_categories_adds_up_to_one() -> None:
    kernels = Kernels(np.array([[0.0], [0.5], [0.5], [0.5]]), (3,))
    found = kernels.at(np.array([[0.0], [0.5], [1.0]]))
    leaves = 2 / 3 * 4 ** (-2 / 5)
    expected = [((1 - leaves) + 3 * leaves / 2) / 4, (3 * (1 - leaves) + leaves / 2) / 4, leaves / 2]
    assert found == pytest.approx(expected) and found.sum() == pytest.approx(1.0)
    assert Kernels(np.zeros((1, 1)), (1,)).at(np.zeros((1, 1))) == pytest.approx([1.0])
    two = Kernels(np.array([[0.0], [0.0], [1.0]]), (2,)).at(np.array([[0.0], [1.0]]))
    leaves = 1 / 2 * 3 ** (-2 / 5)
    assert two == pytest.approx([(2 - leaves) / 3, (1 + leaves) / 3])


def test_numbers_are_drawn_from_truncated_normal_distributions() -> None:
    drawn = Kernels(np.array([[0.9]]), (0,)).draw(np.random.default_rng(0), 3_000, 2.0).ravel()
    width = 0.15 * 2.0
    law = stats.truncnorm((0 - 0.9) / width, (1 - 0.9) / width, loc=0.9, scale=width)
    assert stats.kstest(drawn, law.cdf).pvalue > 0.01


def test_categories_are_drawn_as_the_density_has_them() -> None:
    kernels = Kernels(np.array([[1 / 3], [1 / 3], [1.0]]), (4,))
    drawn = kernels.draw(np.random.default_rng(0), 6_000, 1.0).ravel()
    places = np.arange(4) / 3
    expected = kernels.at(places[:, None])
    assert [float(np.isclose(drawn, place).mean()) for place in places] == pytest.approx(expected.tolist(), abs=0.025)
    assert Kernels(np.zeros((2, 1)), (1,)).draw(np.random.default_rng(0), 5, 3.0).tolist() == [[0.0]] * 5


@pytest.mark.parametrize(
    ("count", "good", "cut"), [(4, 0.15, 3), (12, 0.15, 3), (20, 0.15, 3), (21, 0.15, 4), (20, 0.5, 10), (21, 0.5, 11)]
)
def test_at_least_three_are_good(count: int, good: float, cut: int) -> None:
    found = DensityRatio(0, enough=4, good=good).split([[k / 99] for k in range(count)], [rung_of(range(count))], (0,))
    assert found is not None
    assert (len(found[0].points), len(found[1].points)) == (cut, count - cut)


@pytest.mark.parametrize(("finite", "known"), [(3, True), (2, False)])
def test_where_one_of_the_good_diverged_nothing_is_known(finite: int, known: bool) -> None:
    rung = rung_of([1.0] * finite + [math.inf] * (12 - finite))
    assert (DensityRatio(0).split([[0.5]] * 12, [rung], (0,)) is not None) is known


def test_the_settings_of_the_ratio() -> None:
    assert DensityRatio(3) == DensityRatio(3, 12, 0.15, 0.2)
    assert (rung_density.SAMPLES, rung_density.WIDER, rung_density.WIDTH, rung_density.LEAST) == (64, 3.0, 0.15, 3)


TWENTY = [Tried({"x": k / 19}) for k in range(20)]
BEST_LOW = [rung_of([k / 19 for k in range(20)])]


def proposing(monkeypatch: pytest.MonkeyPatch, places: Sequence[float]) -> tuple[DensityDraws, list[Any]]:
    """A sampler that always takes the model, whose density gives these draws; and what it was asked."""
    asked: list[Any] = []

    def draw(self: Kernels, random: Any, count: int, wider: float) -> Floats:
        asked.append((len(self.points), count, wider))
        return np.array(places, dtype=float)[:, None]

    monkeypatch.setattr(Kernels, "draw", draw)
    sampler = DensityDraws(UNIT, 0)
    sampler.ratio = DensityRatio(0, explore=0.0)
    return sampler, asked


def test_the_draw_with_the_highest_ratio_is_taken_that_nobody_has_had(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, asked = proposing(monkeypatch, [0.9, 0.012, 0.4, 0.021])
    good = Kernels(np.array([[k / 19] for k in range(3)]), (0,))
    bad = Kernels(np.array([[k / 19] for k in range(3, 20)]), (0,))
    first, second, third = sorted(
        (0.012, 0.021, 0.4), key=lambda x: -float(good.at(np.array([[x]]))[0] / bad.at(np.array([[x]]))[0])
    )
    assert sampler.propose(20, TWENTY, BEST_LOW) == {"x": first}
    assert asked == [(3, 64, 3.0)]
    assert sampler.propose(20, [*TWENTY, Tried({"x": first})], BEST_LOW) == {"x": second}
    had = [*TWENTY, *(Tried({"x": x}) for x in (first, second))]
    assert sampler.propose(20, had, BEST_LOW) == {"x": third}


def test_where_all_draws_have_been_tried_one_is_drawn_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, asked = proposing(monkeypatch, [0.0, 1 / 19])
    found = sampler.propose(20, TWENTY, BEST_LOW)
    assert found is not None and asked and found["x"] not in (0.0, 1 / 19)


@pytest.mark.parametrize(("explore", "asks"), [(1.0, False), (0.0, True)])
def test_how_often_the_model_is_asked(explore: float, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, asked = proposing(monkeypatch, [0.5])
    sampler.ratio = DensityRatio(0, explore=explore)
    assert sampler.propose(20, TWENTY, BEST_LOW) is not None
    assert bool(asked) is asks
    asked.clear()
    assert sampler.propose(20, TWENTY, [rung_of([1.0])]) is not None and not asked


def test_an_exhausted_space_has_no_more_to_give() -> None:
    one = Space({"x": Choice((1,))})
    assert DensityDraws(one, 0).propose(1, [Tried({"x": 1})]) is None
    assert RandomDraws(one, 0).propose(1, [Tried({"x": 1})]) is None
    assert RandomDraws(one, 0).propose(0, []) == {"x": 1}


def test_a_pick_is_drawn_from_the_wide_density_and_ranked_by_the_narrow_one() -> None:
    points = [[k / 39] for k in range(40)]
    rungs = [rung_of([abs(k - 8) / 39 for k in range(40)])]
    candidates = np.random.default_rng(2).random((50, 1))
    ratio = DensityRatio(5, explore=0.0)
    split = ratio.split(points, rungs, (0,))
    assert split is not None
    good, bad = split
    for trial in range(4):
        random = ratio.random(trial)
        random.random()
        weights = good.at(candidates, 3.0)
        drawn = random.choice(50, size=64, p=weights / weights.sum())
        scores = good.at(candidates[drawn]) / bad.at(candidates[drawn])
        assert ratio.pick(trial, candidates, points, rungs) == drawn[int(np.argmax(scores))]


@dataclass
class Stub:
    """A space whose draws are these, the last one for ever."""

    draws: list[dict[str, Any]]
    asked: int = 0
    domains: dict[str, Any] = field(default_factory=dict)

    def draw(self, random: Any) -> dict[str, Any]:
        self.asked += 1
        return self.draws[min(self.asked, len(self.draws)) - 1]


@pytest.mark.parametrize(("count", "tries"), [(1, 64), (3, 192)])
def test_how_often_a_draw_is_tried(count: int, tries: int) -> None:
    space: Any = Stub([{"x": 1}])
    assert fresh(space, np.random.default_rng(0), [Tried({"x": 1})], count) == []
    assert space.asked == tries


def test_as_many_draws_as_are_asked_all_different() -> None:
    space: Any = Stub([{"x": 1}, {"x": 2}, {"x": 2}, {"x": 3}, {"x": 4}])
    assert fresh(space, np.random.default_rng(0), [Tried({"x": 1})], 2) == [{"x": 2}, {"x": 3}]
    assert space.asked == 4, "no more than are needed"


def test_what_counts_as_the_same_and_as_bad() -> None:
    assert identity({"b": 1, "a": 2}) == identity({"a": 2, "b": 1}) == (("a", 2), ("b", 1))
    assert taken([Tried({"a": 1}), Tried({"a": 1}), Tried({"a": 2})]) == {(("a", 1),), (("a", 2),)}
    bad = [Tried({}, {1: 1.0, 2: math.nan}), Tried({}, {1: math.inf}), Tried({}, {1: 1.0}, failed=True)]
    assert all(one.bad for one in bad)
    assert not Tried({}).bad and not Tried({}, {1: 1.0}).bad


@pytest.mark.parametrize("trial", [0, 1, 7])
def test_sobols_points_are_scipys(trial: int) -> None:
    space = Space({"x": Interval(0.0, 1.0), "y": Interval(2.0, 4.0)})
    x, y = qmc.Sobol(2, scramble=True, rng=5).random(8)[trial]
    found = Sobol(space, 5).propose(trial, [])
    assert found is not None
    assert dict[str, Any](found) == {"x": pytest.approx(x), "y": pytest.approx(2 + 2 * y)}
    again = Sobol(space, 5).propose(trial, [Tried(found)])
    assert again == RandomDraws(space, 5).propose(trial, [Tried(found)]) != found


def test_how_long_a_range_a_grid_lists() -> None:
    assert list(listed("n", Integers(1, 1000))) == list(range(1, 1001))
    assert listed("n", Choice(("a", "b"))) == ("a", "b")
    with pytest.raises(ValueError, match="cannot list the values of n"):
        listed("n", Integers(1, 1001))
    with pytest.raises(ValueError, match="cannot list the values of n"):
        Grid(Space({"n": Integers(0, 1000)}))
