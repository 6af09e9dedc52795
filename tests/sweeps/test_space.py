"""Domains: their edges, what lies where on the unit interval, and small moves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeps.samplers.base import Tried
from sweeps.samplers.grid import Grid
from sweeps.space import Choice, Condition, Domain, Integers, Interval, Space, domain_size, grid


@pytest.mark.parametrize(
    ("low", "high", "log", "said"),
    [
        (2, 1, False, "is empty"),
        (0, math.inf, False, "two finite numbers"),
        (math.nan, 1, False, "two finite numbers"),
        (0, 1, True, "must start above zero"),
        (-1, 1, True, "must start above zero"),
    ],
)
def test_what_is_no_interval_is_refused(low: float, high: float, log: bool, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Interval(low, high, log)
    with pytest.raises(ValueError, match=said):
        Integers(low, high, log)  # type: ignore[arg-type]  # refused for the same reason


def test_edges_that_are_allowed() -> None:
    assert Interval(1, 1).unit(1) == 0.0
    assert Interval(1, 1, True).at(0.7) == 1.0
    assert Interval(-1, 0).at(1.0) == 0.0
    assert Interval(0.5, 1, True).holds(0.5)


@pytest.mark.parametrize(
    ("domain", "place", "value"),
    [
        (Interval(2, 10), 0.0, 2), (Interval(2, 10), 0.25, 4), (Interval(2, 10), 1.0, 10),
        (Interval(1e-4, 1e-2, True), 0.5, 1e-3), (Interval(1e-4, 1e-2, True), 0.25, 10**-3.5),
        (Integers(1, 4), 0.0, 1), (Integers(1, 4), 0.24, 1), (Integers(1, 4), 0.26, 2), (Integers(1, 4), 0.99, 4),
        (Integers(1, 4), 1.0, 4), (Integers(2, 32, True), 0.0, 2), (Integers(2, 32, True), 0.5, 7),
        (Integers(2, 32, True), 1.0, 32), (Integers(2, 32, True), 0.9, 24),
        (Choice(("a", "b", "c")), 0.0, "a"), (Choice(("a", "b", "c")), 0.34, "b"), (Choice(("a", "b", "c")), 1.0, "c"),
    ],
)  # fmt: skip
def test_what_lies_at_a_place(domain: Domain, place: float, value: float | str) -> None:
    assert domain.at(place) == (pytest.approx(value) if isinstance(value, float) else value)
    assert domain.holds(domain.at(place))


@pytest.mark.parametrize(
    ("domain", "value", "place"),
    [
        (Interval(2, 10), 4, 0.25), (Interval(1e-4, 1e-2, True), 1e-3, 0.5), (Integers(2, 32, True), 8, 0.5),
        (Integers(0, 10), 3, 0.3), (Choice(("a", "b", "c")), "b", 0.5), (Choice(("a",)), "a", 0.0),
        (Choice(("a", "b")), "b", 1.0),
    ],
)  # fmt: skip
def test_where_a_value_lies(domain: Domain, value: float | str, place: float) -> None:
    assert domain.unit(value) == pytest.approx(place)


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (Interval(2, 10), [2, 2.5, 10], [1.99, 10.01, "5"]),
        (Integers(2, 10), [2, 10], [1, 11, 2.5, "5"]),
        (Choice((1, "a")), [1, "a"], [2, "b"]),
    ],
)
def test_what_a_domain_holds(domain: Domain, inside: list[float | str], outside: list[float | str]) -> None:
    assert all(domain.holds(value) for value in inside)
    assert not any(domain.holds(value) for value in outside)


@pytest.mark.parametrize(
    ("domain", "value", "factor", "moved"),
    [
        (Interval(2, 10), 4, 1.5, 6.0), (Interval(2, 10), 8, 1.5, 10.0), (Interval(2, 10), 2.2, 0.5, 2.0),
        (Integers(1, 64), 8, 1.25, 10), (Integers(1, 64), 2, 1.2, 3), (Integers(1, 64), 2, 0.8, 1),
        (Integers(1, 64), 1, 0.8, 1), (Integers(1, 64), 64, 1.2, 64), (Integers(1, 64), 60, 1.25, 64),
        (Choice(("a", "b", "c")), "b", 2.0, "b"), (Choice(("a", "b", "c"), True), "b", 2.0, "c"),
        (Choice(("a", "b", "c"), True), "b", 0.5, "a"), (Choice(("a", "b", "c"), True), "a", 0.5, "a"),
        (Choice(("a", "b", "c"), True), "c", 2.0, "c"),
    ],
)  # fmt: skip
def test_a_small_move(domain: Domain, value: float | str, factor: float, moved: float | str) -> None:
    assert domain.perturb(value, factor, np.random.default_rng(0)) == moved


def test_what_no_factor_moves_is_drawn_anew() -> None:
    found = {Interval(0, 1).perturb(0, 1.2, np.random.default_rng(seed)) for seed in range(9)}
    assert len(found) == 9 and min(found) > 0
    assert Choice((1, 2), True).perturb(7, 1.2, np.random.default_rng(0)) in (1, 2)


@pytest.mark.parametrize("log", [False, True])
def test_draws_of_whole_numbers_reach_both_ends_and_follow_their_law(log: bool) -> None:
    random = np.random.default_rng(0)
    values = [Integers(1, 4, log).draw(random) for _ in range(4000)]
    shares = [values.count(value) / 4000 for value in (1, 2, 3, 4)]
    expected = np.diff(np.log([0.5, 1.5, 2.5, 3.5, 4.5])) / np.log(9) if log else [0.25] * 4
    assert shares == pytest.approx(expected, abs=0.03)


def test_draws_of_an_interval_are_uniform_in_it_or_in_its_logarithm() -> None:
    random = np.random.default_rng(0)
    plain = [Interval(1, 100).draw(random) for _ in range(2000)]
    by_log = [Interval(1, 100, True).draw(random) for _ in range(2000)]
    assert np.quantile(plain, [0, 0.5, 1]) == pytest.approx([1, 50, 100], abs=3)
    assert np.log10(np.quantile(by_log, [0, 0.5, 1])) == pytest.approx([0, 1, 2], abs=0.07)
    choice = [Choice(("a", "b")).draw(random) for _ in range(2000)]
    assert choice.count("a") / 2000 == pytest.approx(0.5, abs=0.05)


def test_sizes() -> None:
    assert domain_size(Choice((1, 2, 3))) == 3
    assert domain_size(Integers(2, 5)) == 4
    assert domain_size(Interval(2, 5)) == math.inf


def test_a_space_has_as_many_settings_as_a_grid_of_it_lists() -> None:
    domains: dict[str, Domain] = {
        "a": Choice(("x", "y", "z")),
        "b": Integers(1, 4),
        "c": Choice((1, 2)),
        "d": Choice((5, 6, 7)),
    }
    conditions = {"b": Condition("a", ("x",)), "c": Condition("a", ("y", "z")), "d": Condition("c", (2,))}
    for space, size in ((Space(domains), 72), (Space(domains, conditions), 4 + 2 * (1 + 3)), (Space({}), 1)):
        listed, had = Grid(space), list[Tried]()
        while (found := listed.propose(0, had)) is not None:
            had.append(Tried(found))
        assert space.size == size == len(had)
    real: dict[str, Domain] = {"a": Choice((1, 2)), "b": Interval(0, 1)}
    assert Space(real).size == Space(real, {"b": Condition("a", (2,))}).size == math.inf


@pytest.mark.parametrize("values", [(), (1, 1)])
def test_a_choice_has_values_and_none_twice(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one value and none twice"):
        Choice(values)


SPACE = Space({"name": Choice(("adamw", "muon")), "lr": Interval(0, 1), "momentum": Interval(0, 1)},
              {"momentum": Condition("name", ("muon",))})  # fmt: skip


def test_what_depends_on_another_is_there_only_with_it() -> None:
    assert SPACE.at([0.0, 0.5, 0.25]) == {"name": "adamw", "lr": 0.5}
    assert SPACE.at([0.9, 0.5, 0.25]) == {"name": "muon", "lr": 0.5, "momentum": 0.25}
    assert SPACE.unit({"name": "adamw", "lr": 0.75}) == [0.0, 0.75, 0.5]
    assert SPACE.unit({"name": "muon", "lr": 0.75, "momentum": 0.1}) == [1.0, 0.75, 0.1]
    draws = [SPACE.draw(np.random.default_rng(seed)) for seed in range(20)]
    assert all(("momentum" in draw) == (draw["name"] == "muon") for draw in draws)
    assert {draw["name"] for draw in draws} == {"adamw", "muon"}
    with pytest.raises(ValueError, match="zip"):
        SPACE.at([0.0, 0.5])


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"beta": Condition("name", ("a",))}, "the condition of 'beta' has no domain"),
        ({"name": Condition("lr", (1,))}, "'name' depends on 'lr', which must be given before it"),
        ({"lr": Condition("lr", (1,))}, "'lr' depends on 'lr', which must be given before it"),
    ],
)
def test_conditions_that_cannot_hold_are_refused(conditions: dict[str, Condition], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Space({"name": Choice(("a", "b")), "lr": Interval(0, 1)}, conditions)


def test_a_grid_varies_the_last_name_fastest() -> None:
    assert grid({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid({}) == [{}]
