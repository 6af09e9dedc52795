"""Rows and their groups, the path of a law, and growth along it, by literal tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.approaches import frontier_path
from analysis.inputs.dataset import Rows, clusters, rows
from analysis.values.blocks import Block, Identified, PowerLaw
from analysis.values.study_result import PathPoint, Proposal, Recommendation


def held(**more: Any) -> Any:
    base: dict[str, Any] = {
        "params": np.array([1e6, 2e6, 1.003e6, 4e6]), "tokens": np.array([1.0, 2.0, 3.0, 4.0]),
        "flops": np.array([1e14, 1e15, 1.005e14, 1e13]), "loss": np.array([5.0, 6.0, 7.0, 8.0]),
    }  # fmt: skip
    return rows(("a", "b", "c", "d"), **(base | more))


def test_groups_of_budgets_and_sizes() -> None:
    found = held()
    assert found.budget.tolist() == [1, 2, 1, 0]
    assert found.size.tolist() == [0, 1, 0, 2]
    np.testing.assert_allclose(found.labels, [1e13, 1e14 * 1.005**0.5, 1e15])
    named = held(nominal=np.array([7e14, 7e14, np.nan, np.nan]))
    assert named.budget.tolist() == [2, 2, 1, 0]
    np.testing.assert_allclose(named.labels, [1e13, 1.005e14, 7e14])
    mixed = held(nominal=np.array([np.nan, 9.0, 1.002e14, 9.0]))
    np.testing.assert_allclose(mixed.labels, [9.0, 1.002e14])
    assert held(size=np.array([4, 4, 4, 4])).size.tolist() == [4] * 4
    assert (found.run, list(found.columns), len(found)) == (None, ["params", "tokens", "flops", "loss"], 4)
    assert len(rows((), params=np.array([]), tokens=np.array([]), flops=np.array([]), loss=np.array([])).labels) == 0


def test_columns_by_name() -> None:
    found = held(extra={"lr": np.array([1.0, 2.0, 3.0, 4.0])})
    assert found.column("loss").tolist() == [5, 6, 7, 8]
    assert found.column("lr").tolist() == [1, 2, 3, 4]
    with pytest.raises(
        ValueError, match=r"no column 'x'; map it with columns=x:COLUMN \(there are params, tokens, flops, loss, lr\)"
    ):
        found.column("x")


def test_taking_numbers_groups_anew() -> None:
    found = held(run=np.array([5, 5, 9, 2]), extra={"lr": np.arange(4.0)}).take(np.array([False, True, True, True]))
    assert found.keys == ("b", "c", "d")
    assert (found.budget.tolist(), found.size.tolist()) == ([2, 1, 0], [1, 0, 2])
    assert found.run is not None
    assert found.run.tolist() == [1, 2, 0]
    assert found.params.tolist() == [2e6, 1.003e6, 4e6]
    assert (found.tokens.tolist(), found.loss.tolist()) == ([2, 3, 4], [6, 7, 8])
    assert found.columns["lr"].tolist() == [1, 2, 3]
    assert found.flops.tolist() == [1e15, 1.005e14, 1e13]
    np.testing.assert_allclose(found.labels, [1e13, 1e14 * 1.005**0.5, 1e15])
    assert held().take(np.array([True] * 4)).run is None


def test_clusters_by_gap_and_by_span() -> None:
    steps = np.exp(np.cumsum([0.0, 0.009, 0.011, 0.009, 0.009, 0.009]))
    assert clusters(steps, 0.01).tolist() == [0, 0, 1, 1, 1, 2], "a gap, then a span above twice the tolerance"
    assert clusters(steps[::-1], 0.01).tolist() == [2, 1, 1, 1, 0, 0]
    assert clusters(np.array([3.0, 1.0, 2.0]), 0.01).tolist() == [2, 0, 1]
    exact = np.exp2([0.0, 1.0, 2.0, 3.0])
    gap = float(np.log(2.0))
    assert clusters(exact, gap * 1.01).tolist() == [0, 0, 0, 1]
    assert clusters(np.array([]), 0.01).tolist() == []


def proposal(budget: float, size: float | None = None) -> Proposal:
    n = budget**0.5 if size is None else size
    return Proposal(n, budget / 6 / n, budget / 6 / n**2, 2.0 + budget**-0.1, {"params": (n / 2, 2 * n)})


PLAN = Recommendation(
    approach="law", budget_flops=1e20, params=1e10, tokens=2e9, tokens_per_param=0.2, loss=2.01,
    intervals={"loss": None},
    extrapolation_factor=10.0, by_approach={}, disagreement=None,
)  # fmt: skip


def test_a_path_is_the_best_run_of_each_budget() -> None:
    found = frontier_path.path(proposal, 1e16, 1e20, 5)
    np.testing.assert_allclose([p.flops for p in found], [1e16, 1e17, 1e18, 1e19, 1e20])
    assert [p.params for p in found] == [p.flops**0.5 for p in found]
    assert found[0] == PathPoint(found[0].flops, *_parts(proposal(found[0].flops)))
    assert len(frontier_path.path(proposal, 1e16, 1e20)) == 25
    some = frontier_path.path(lambda c: proposal(c) if c > 5e17 else None, 1e16, 1e20, 5)
    assert len(some) == 3


def test_the_table_has_the_data_s_budgets_the_one_asked_for_and_decades_beyond() -> None:
    assert frontier_path.budgets([1e18, 3e18, 1e19], 1e20) == (1e18, 3e18, 1e19, 1e20, 1e21, 1e22)
    assert frontier_path.budgets([9.5e18], 9.5e19) == (9.5e18, 9.5e19, 1e21, 1e22), "no decade beside a budget"
    assert frontier_path.budgets([1e18, 1e19], 2e18) == (1e18, 2e18, 1e19, 1e20, 1e21, 1e22)
    assert frontier_path.budgets([1e18, 1.001e19], 1e19) == (1e18, 1e19, 1e20, 1e21, 1e22), "the one asked for stays"
    assert frontier_path.budgets([1e18], 3e23)[-3:] == (1e22, 1e23, 3e23), "up to the one asked for"
    far = frontier_path.budgets([1e18], 1e60)
    assert far[-1] == 1e60
    assert len(far) <= 14
    many = frontier_path.budgets(np.geomspace(2e17, 4e19, 50).tolist(), 4e20)
    assert many == pytest.approx((2e17, 1e18, 1e19, 4e19, 1e20, 4e20, 1e21, 1e22)), "of many the whole decades"


def test_the_table_is_of_the_law_itself_and_says_what_lies_beyond() -> None:
    found = frontier_path.optima(lambda c: proposal(c) if c < 5e21 else None, [1e18, 1.01e19], 1e19, 1e20)
    assert [one.budget_flops for one in found] == [1e18, 1.01e19, 1e20, 1e21], "none at 1e22"
    assert [one.beyond for one in found] == [False, False, True, True], "a budget of the data is never beyond them"
    for one in found:
        best = proposal(one.budget_flops)
        assert (one.params, one.tokens, one.tokens_per_param) == (best.params, best.tokens, best.tokens_per_param)
        assert (one.loss, one.intervals) == (best.loss, best.intervals)


def test_a_path_may_have_fewer_draws_than_the_table() -> None:
    def sketch(budget: float) -> Proposal:
        return proposal(budget, 7.0)

    found = frontier_path.with_path(PLAN, proposal, _of(1e18, 1e19), lambda *_: {}, sketch)
    assert {p.params for p in found.path[:-1]} == {7.0}
    assert {one.params for one in found.optima}.isdisjoint({7.0})


def _of(*flops: float) -> Rows:
    values = np.array(flops)
    return rows(tuple(map(str, flops)), params=values, tokens=values, flops=values, loss=values)


def _parts(one: Proposal) -> tuple[Any, ...]:
    return one.params, one.tokens, one.loss, one.intervals


def test_the_path_ends_in_the_recommendation_itself() -> None:
    seen: list[Any] = []

    def grow(plan: Any, points: Any) -> Any:
        seen.append((plan, points))
        return {"params": "growth"}

    found = frontier_path.with_path(PLAN, proposal, _of(1e16, 1e19), grow)
    assert len(found.path) == 25
    end = found.path[-1]
    assert (end.flops, end.params, end.tokens, end.loss, end.intervals) == (1e20, 1e10, 2e9, 2.01, {"loss": None})
    assert all(p.flops < 0.999e20 for p in found.path[:-1])
    assert list(found.growth) == ["params"]
    assert seen == [(PLAN, found.path)]
    beyond = frontier_path.with_path(PLAN, proposal, _of(1e21, 1e22), grow)
    assert [p.flops for p in beyond.path] == [1e20], "runs above the budget are no way to it"


def block(**more: Any) -> Block:
    return Block(form="", approach="law", loss_function="", **more)


def test_growth_by_exponents() -> None:
    known = block(derived={"a": 0.45, "b": 0.55}, intervals={"a": (0.4, 0.5), "b": None})
    found = frontier_path.by_exponents(PLAN, known)
    size, tokens = found["params"], found["tokens"]
    assert (size.value, size.exponent, size.reference_flops, size.interval, size.reason) == (
        1e10,
        0.45,
        1e20,
        (0.4, 0.5),
        "",
    )
    assert (tokens.value, tokens.exponent, tokens.interval) == (2e9, 0.55, None)
    assert tokens.reason == "the fit was made without resamples"
    lost = block(
        derived={"a": 0.45, "b": 0.55}, intervals={"a": (0.4, 0.5), "b": (0.5, 0.6)},
        identified={"a": Identified(False, "why not"), "b": Identified(True)},
    )  # fmt: skip
    found = frontier_path.by_exponents(PLAN, lost)
    assert (found["params"].interval, found["params"].reason) == (None, "why not")
    assert (found["tokens"].interval, found["tokens"].reason) == ((0.5, 0.6), "")
    assert frontier_path.by_exponents(PLAN, block(derived={"a": 0.45})) == {}
    assert frontier_path.by_exponents(PLAN, block()) == {}
    assert frontier_path.by_exponents(PLAN, block(params={"a": 156.0, "b": 277.0})) == {}, "Gadre's coefficients"
    assert frontier_path._why(lost, "b") == ""
    assert frontier_path._why(lost, "a") == "why not"


def test_growth_by_power_laws() -> None:
    laws = {
        "params": PowerLaw(1.0, 0.5, 1.0, None, (0.4, 0.6), None, 3, 1),
        "tokens": PowerLaw(1.0, 0.6, 1.0, None, None, None, 3, 1),
    }  # fmt: skip
    found = frontier_path.by_power_laws(PLAN, laws)
    assert (found["params"].value, found["params"].exponent, found["params"].interval) == (1e10, 0.5, (0.4, 0.6))
    assert (found["params"].reason, found["params"].reference_flops) == ("", 1e20)
    assert (found["tokens"].value, found["tokens"].exponent, found["tokens"].interval) == (2e9, 0.6, None)
    assert found["tokens"].reason == "no resample gave one"


def test_growth_over_the_last_stretch() -> None:
    points = tuple(
        PathPoint(c, 1e10 * (c / 1e20) ** 0.4, 2e9 * (c / 1e20) ** 0.7, None, {}) for c in (1e17, 1e19, 0.9e20)
    )
    found = frontier_path.by_slope(PLAN, points)
    assert found["params"].exponent == pytest.approx(0.4)
    assert found["tokens"].exponent == pytest.approx(0.7)
    assert (found["params"].value, found["tokens"].value, found["params"].reference_flops) == (1e10, 2e9, 1e20)
    assert found["params"].interval is None
    assert found["params"].reason == "it is the slope of this law's path from 1e19 FLOPs on"
    assert frontier_path.by_slope(PLAN, points[2:]) == {}, "less than a factor of 1.5 away"
    near = (PathPoint(1e20 / 1.5, 1.0, 1.0, None, {}),)
    assert frontier_path.by_slope(PLAN, near) == {}
    assert frontier_path.by_slope(PLAN, (PathPoint(1e20 / 1.51, 1.0, 1.0, None, {}),)) != {}
