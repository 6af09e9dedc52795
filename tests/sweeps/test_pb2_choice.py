"""What PB2 chooses, step by step: the places that it compares, its bound, and how many observations count."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from sweeps.history import Config
from sweeps.schedulers import pb2
from sweeps.schedulers.drifting_gp import GRID, JITTER, Floats, Kernel, Posterior, likelihoods
from sweeps.schedulers.pb2 import Stretch
from sweeps.space import Choice, Condition, Integers, Interval, Space

SPACE = Space(
    {
        "kind": Choice(("a", "b")),
        "lr": Interval(1e-4, 1e-1, log=True),
        "fixed": Interval(0.5, 0.5),
        "layers": Integers(1, 4),
        "momentum": Interval(0.0, 1.0),
    },
    {"momentum": Condition("kind", ("b",))},
)
FULL: Config = {"kind": "b", "lr": 1e-2, "fixed": 0.5, "layers": 2, "momentum": 0.25}


def stretches(count: int, *, gains: int | None = None) -> list[Stretch]:
    """So many, of which the first `gains` gained something and the others went wrong."""
    random = np.random.default_rng(count)
    places = random.random((count, 2))
    return [
        Stretch(
            {**FULL, "lr": 1e-4 * 1000**a, "momentum": b},
            float(k // 4),
            float(1 - (a - 0.3) ** 2 + b) if gains is None or k < gains else math.nan,
        )
        for k, (a, b) in enumerate(places.tolist())
    ]


def choose(seen: list[Stretch], under_way: list[Stretch] = [], **also: Any) -> dict[str, Any] | None:  # noqa: B006
    arguments = {"taken": [], "random": np.random.default_rng(0), **also}
    return pb2.chosen(SPACE, FULL, 7.0, seen, under_way, **arguments)


def test_only_real_numbers_that_have_more_than_one_value_are_chosen() -> None:
    assert pb2.real(SPACE) == ("lr", "momentum")
    found = choose(stretches(12))
    assert found is not None
    kept = ("kind", "fixed", "layers")
    assert {name: found[name] for name in kept} == {name: FULL[name] for name in kept}
    assert found["lr"] != FULL["lr"] and found["momentum"] != FULL["momentum"]
    assert list(found) == list(FULL)


def test_a_config_without_a_real_number_is_left_to_the_plain_explore_step() -> None:
    space = Space({"kind": Choice(("a", "b")), "x": Interval(0, 1)}, {"x": Condition("kind", ("b",))})
    seen = [Stretch({"kind": "b", "x": k / 9}, 0.0, float(k)) for k in range(9)]
    random = np.random.default_rng(0)
    assert pb2.chosen(space, {"kind": "a"}, 1.0, seen, [], taken=[], random=random) is None
    assert pb2.chosen(space, {"kind": "b", "x": 0.1}, 1.0, seen, [], taken=[], random=random) is not None


@pytest.mark.parametrize(
    ("total", "gains", "chooses"), [(4, 4, False), (5, 5, True), (9, 4, False), (96, 5, True), (97, 5, False)]
)
def test_how_many_gains_are_needed_and_how_long_they_count(total: int, gains: int, chooses: bool) -> None:
    """Five, among the latest 96 stretches."""
    assert (choose(stretches(total, gains=gains)) is not None) is chooses


class Everything(Collection[Config]):
    def __contains__(self, config: object) -> bool:
        return True

    def __iter__(self) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        return 1


def test_where_all_are_taken_there_is_none_and_the_next_best_where_the_best_is() -> None:
    seen = stretches(12)
    assert choose(seen, taken=Everything()) is None
    first = choose(seen)
    assert first is not None
    second = choose(seen, taken=[first])
    assert second is not None and second != first


def test_the_bound_is_the_mean_and_so_many_standard_deviations_of_what_will_be_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds: list[Any] = []

    def first(bound: Any, free: Any, random: np.random.Generator) -> Floats:
        bounds.append((bound, free))
        return np.array([[0.25, 0.75]])

    monkeypatch.setattr(pb2, "_best_first", first)
    seen, out = stretches(14), stretches(3, gains=0)
    found = choose(seen, out)
    assert found == {**FULL, "lr": pytest.approx(1e-4 * 1000**0.25), "momentum": 0.75}
    ((bound, free),) = bounds
    assert free.tolist() == [True, True]
    places = np.random.default_rng(5).random((6, 2))
    x, t = laid_out(seen)
    gains = np.array([one.gain for one in seen])
    y = np.clip((gains - gains.mean()) / gains.std(), -2, 2)
    kernel = GRID[int(np.argmax(likelihoods(x, t, y)))]
    now = np.full(6, 7.0)
    mean = kernel.between(places, now, x, t) @ np.linalg.inv(covariance(kernel, x, t)) @ y
    more_x, more_t = (np.concatenate(pair) for pair in zip((x, t), laid_out(out), strict=True))
    cross = kernel.between(places, now, more_x, more_t)
    left = 1 - kernel.noise - np.diag(cross @ np.linalg.inv(covariance(kernel, more_x, more_t)) @ cross.T)
    expected = mean + math.sqrt(0.2 + math.log(0.4 * 14)) * np.sqrt(left)
    np.testing.assert_allclose(bound(places), expected, rtol=1e-4, atol=1e-5)


def laid_out(found: list[Stretch]) -> tuple[Floats, Floats]:
    x = [[math.log(float(s.config["lr"]) / 1e-4) / math.log(1000), float(s.config["momentum"])] for s in found]
    return np.array(x), np.array([s.begun for s in found])


def covariance(kernel: Kernel, x: Floats, t: Floats) -> Floats:
    found: Floats = kernel.between(x, t, x, t) + kernel.noise * np.eye(len(x))
    return found


def test_as_many_of_what_is_under_way_count_as_of_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Watched(Posterior):
        def expecting(self, x: Floats, t: Floats) -> Posterior:
            sizes.append((x.shape, t.shape))
            return super().expecting(x, t)

    monkeypatch.setattr(pb2, "Posterior", Watched)
    choose(stretches(6), stretches(100))
    choose(stretches(6))
    assert sizes == [((96, 2), (96,)), ((0, 2), (0,))]


def test_what_a_config_is_without_lies_in_the_middle() -> None:
    x, t = pb2._laid_out(SPACE, [Stretch({"kind": "a", "lr": 1e-3, "fixed": 0.5, "layers": 1}, 2.5, 1.0)])
    assert x == pytest.approx(np.array([[1 / 3, 0.5]])) and t.tolist() == [2.5]


@pytest.mark.parametrize(
    ("count", "square"), [(1, 0.2), (2, 0.2), (3, 0.2 + math.log(1.2)), (25, 0.2 + math.log(10.0))]
)
def test_how_far_above_the_mean_the_bound_is(count: int, square: float) -> None:
    assert pb2.beta(count) == pytest.approx(square)


def test_a_gain_far_above_the_others_counts_as_two_standard_deviations() -> None:
    assert pb2.normalised([0.0] * 9 + [10.0]) == pytest.approx([-1 / 3] * 9 + [2.0])


def test_places_are_compared_everywhere_first_and_then_nearer_to_the_best() -> None:
    asked: list[Floats] = []
    target = np.array([0.5, 0.6])

    def bound(places: Floats) -> Floats:
        asked.append(places)
        found: Floats = -((places[:, :2] - target) ** 2).sum(axis=1)
        return found

    found = pb2._best_first(bound, np.array([True, True, False]), np.random.default_rng(0))
    assert [len(places) for places in asked] == [512, 128, 128, 128]
    assert all(((places >= 0) & (places <= 1)).all() and (places[:, 2] == 0.5).all() for places in asked)
    everywhere = asked[0][:, :2]
    assert everywhere.mean() == pytest.approx(0.5, abs=0.03) and everywhere.std() == pytest.approx(12**-0.5, abs=0.02)
    best, height = asked[0], bound(asked[0])
    for nearer, away in zip(asked[1:4], (0.1, 0.03, 0.01), strict=True):
        centre = best[int(np.argmax(height))]
        moves = (nearer - centre)[:, :2]
        assert moves.std() == pytest.approx(away, rel=0.15)
        assert np.abs(moves.mean(axis=0)).max() < 0.35 * away
        best, height = np.concatenate([best, nearer]), np.concatenate([height, bound(nearer)])
    assert len(found) == 512 + 3 * 128
    heights = bound(found)
    assert (np.diff(heights) <= 0).all()
    assert heights[0] == height.max() > -1e-4


def test_places_beyond_the_end_of_a_range_are_brought_to_it() -> None:
    asked: list[Floats] = []

    def bound(places: Floats) -> Floats:
        asked.append(places)
        return places[:, 0] - places[:, 1]

    found = pb2._best_first(bound, np.array([True, True]), np.random.default_rng(0))
    assert found[0].tolist() == [1.0, 0.0]
    assert all(places.min() >= 0 and places.max() <= 1 for places in asked)


def test_equal_places_keep_their_order() -> None:
    found = pb2._best_first(lambda places: np.zeros(len(places)), np.array([True]), np.random.default_rng(0))
    first = np.random.default_rng(0).random((512, 1))
    assert (found[:512] == first).all()


def test_the_kernels_that_are_compared() -> None:
    assert {kernel.width for kernel in GRID} == {0.1, 0.2, 0.4, 0.8}
    assert {kernel.forget for kernel in GRID} == {kernel.noise for kernel in GRID} == {0.01, 0.1, 0.4}
    assert len(set(GRID)) == 36


def test_observations_at_one_place_have_a_factor_also_without_noise() -> None:
    same = np.full((3, 2), 0.5)
    known = Posterior(Kernel(0.5, 0.0, 0.0), same, np.zeros(3), np.array([1.0, 1.0, 1.0]))
    assert known.mean(same[:1], np.zeros(1)) == pytest.approx([1.0], abs=1e-6)
    assert 0 < JITTER < 1e-6


def test_observations_that_are_all_zero_have_a_likelihood() -> None:
    x, t = np.random.default_rng(0).random((4, 2)), np.arange(4.0)
    found = likelihoods(x, t, np.zeros(4))
    for kernel, value in zip(GRID, found, strict=True):
        expected = -0.5 * np.linalg.slogdet(covariance(kernel, x, t))[1] - 2 * math.log(2 * math.pi)
        assert value == pytest.approx(expected, abs=1e-5)
