"""The law of the frontier through made-up minima: exact where they are, with a floor from four on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.approaches import frontier
from analysis.approaches.frontier import FrontierFit
from analysis.approaches.valleys import ValleyFit
from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference import resampling
from analysis.inputs.dataset import Rows, rows
from analysis.laws.sum_of_powers import FRONTIER, FRONTIER_NO_FLOOR
from analysis.values.blocks import Frontier

NONE: Any = None
FLOPS = np.geomspace(1e15, 1e19, 5)
REFERENCE = 1e17


def valleys_of(flops: Any, loss: Any, draws: Any = None) -> ValleyFit:
    """Return valleys with these minima and draws of their loss; nothing else of them is read."""
    flops, loss = np.asarray(flops, dtype=float), np.asarray(loss, dtype=float)
    drawn = np.empty((0, len(flops))) if draws is None else np.asarray(draws)
    return ValleyFit(NONE, flops, flops, flops, loss, drawn, drawn, drawn)


def runs(flops: Any, loss: Any) -> Rows:
    flops = np.asarray(flops, dtype=float)
    keys = tuple(f"r{i}" for i in range(len(flops)))
    params = np.arange(1.0, len(flops) + 1)
    return rows(keys, params=params, tokens=flops / params, flops=flops, loss=np.asarray(loss, dtype=float))


EMPTY = runs([1e15, 1e16], [3.0, 2.0])


def law(flops: Any, floor: float = 2.0, a: float = 0.5, alpha: float = 0.2, reference: float = REFERENCE) -> Any:
    return floor + a * (np.asarray(flops) / reference) ** -alpha


def fitted(found: FrontierFit | Frontier) -> FrontierFit:
    assert isinstance(found, FrontierFit)
    return found


def test_five_exact_minima_have_their_law() -> None:
    found = fitted(frontier.fit(EMPTY, valleys_of(FLOPS, law(FLOPS))))
    block = found.block
    assert block.params == pytest.approx({"L_inf": 2.0, "a": 0.5, "alpha": 0.2}, rel=1e-5)
    assert block.reference_flops == pytest.approx(REFERENCE)
    assert (block.form, block.approach, block.rows_used) == (FRONTIER.text, "frontier", 5)
    assert [(p.flops, p.loss) for p in block.points] == list(zip(FLOPS.tolist(), law(FLOPS).tolist(), strict=True))
    assert block.points_are == "minima of the valleys"
    assert block.objective is not None
    assert block.objective < 1e-12
    assert block.intervals == dict.fromkeys(("L_inf", "a", "alpha"))
    assert {v.reason for v in block.identified.values()} == {"its points have no resamples"}
    value, draws = found.predict(1e20)
    assert value == pytest.approx(law(1e20), rel=1e-6)
    assert draws.shape == (0,)


def test_a_forecast_by_hand() -> None:
    block = Frontier(form="", approach="frontier", loss_function="", reference_flops=1e10)
    value, draws = FrontierFit(block, np.array([1.0, 3.0, 0.5]), np.array([[2.0, 1.0, 1.0], [0.0, 4.0, 0.25]])).predict(
        1e14
    )
    assert value == pytest.approx(1.0 + 3.0 / 100)
    assert draws.tolist() == pytest.approx([2.0 + 1e-4, 0.4])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_floor_from_four_points_on(count: int) -> None:
    some = FLOPS[:count]
    found = fitted(frontier.fit(EMPTY, valleys_of(some, law(some, floor=0.0, alpha=0.1))))
    reference = float(np.exp(np.log(some).mean()))
    if count < 4:
        assert found.block.form == FRONTIER_NO_FLOOR.text
        assert found.block.params == pytest.approx({"a": law(reference, 0.0, 0.5, 0.1), "alpha": 0.1}, rel=1e-6)
        assert found.constants[0] == 0.0
        assert found.predict(1e21)[0] == pytest.approx(law(1e21, 0.0, 0.5, 0.1), rel=1e-6)
    else:
        assert found.block.form == FRONTIER.text
    assert found.block.points_are == "minima of the valleys"


def test_without_two_minima_the_lowest_runs_of_budgets_take_their_place() -> None:
    flops = np.repeat(FLOPS[:3], [2, 1, 3])
    table = runs(flops, [3.0, 4.0, 9.0, 2.5, 2.4, 2.6])
    for one in ([], [1e15]):
        found = fitted(frontier.fit(table, valleys_of(one, [2.0] * len(one))))
        assert found.block.points_are == "lowest loss of each budget"
        assert [(p.flops, p.loss) for p in found.block.points] == [(FLOPS[0], 3.0), (FLOPS[2], 2.4)]
        assert found.block.params["alpha"] == pytest.approx(np.log(3.0 / 2.4) / np.log(FLOPS[2] / FLOPS[0]), rel=1e-6)
        assert found.draws.shape == (0, 3)


def test_one_budget_is_no_law() -> None:
    table = runs(np.repeat(FLOPS[:3], [2, 1, 1]), [3.0, 4.0, 9.0, 2.5])
    found = frontier.fit(table, valleys_of([], []))
    assert isinstance(found, Frontier)
    assert found.status == "not possible"
    assert found.reason == "1 budget with at least two runs; a law needs two, with a floor four"
    assert [(p.flops, p.loss) for p in found.points] == [(FLOPS[0], 3.0)]
    assert found.points_are == "lowest loss of each budget"
    assert found.form == FRONTIER.text


def test_draws_are_fitted_one_by_one_and_a_minimum_that_is_missing_has_no_weight() -> None:
    p = fit_problem.problem(FRONTIER, (FLOPS / REFERENCE,), law(FLOPS), objectives.Squared())
    point = multistart.fit_point(p)
    drawn = np.stack((law(FLOPS, 1.9, 0.6, 0.2), law(FLOPS, 2.1, 0.45, 0.22), law(FLOPS), law(FLOPS), law(FLOPS)))
    drawn[1, 2] = np.nan
    drawn[2] = law(FLOPS, 1.95, 0.55, 0.19)
    drawn[2, 0] = -1.0
    drawn[3, :2] = np.nan  # three are left for three constants
    drawn[4, :3] = np.nan
    found = frontier._draws(p, point, drawn)
    np.testing.assert_allclose(
        found[:4], [[1.9, 0.6, 0.2], [2.1, 0.45, 0.22], [1.95, 0.55, 0.19], [2, 0.5, 0.2]], rtol=2e-3
    )
    assert np.isnan(found[4]).all()
    assert frontier._draws(p, point, np.empty((0, 5))).shape == (0, 3)
    low = frontier._draws(p, point, law(FLOPS, 0.2, 0.05, 0.2)[None])
    np.testing.assert_allclose(low, [[0.2, 0.05, 0.2]], rtol=1e-2)


def test_padding() -> None:
    three, two = np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 3.0], [4.0, 5.0]])
    assert frontier._padded(FRONTIER, three) is three
    assert frontier._padded(FRONTIER_NO_FLOOR, two).tolist() == [[0, 2, 3], [0, 4, 5]]


def scatter(residual: Any) -> tuple[fit_problem.Problem, multistart.PointFit, Any]:
    p = fit_problem.problem(FRONTIER, (FLOPS / REFERENCE,), law(FLOPS) * np.exp(residual), objectives.Squared())
    point = multistart.fit_point(p)
    return p, point, fit_problem.residuals(p, point.theta[None])[0]


def test_minima_scatter_around_the_frontier_like_students_t() -> None:
    """Five minima and three constants leave two degrees of freedom: |t| has its median at 0.8165."""
    p, point, rest = scatter([0.01, -0.01, 0.01, -0.01, 0.01])
    drawn = np.tile(law(FLOPS), (4000, 1))
    away = np.log(frontier._scattered(p, point, drawn) / drawn)
    scale = np.sqrt((rest**2).sum() / 2)
    assert np.median(np.abs(away)) / scale == pytest.approx(0.8165, rel=0.06)
    assert np.quantile(np.abs(away), 0.9) / scale == pytest.approx(2.92, rel=0.08)
    assert np.abs(np.corrcoef(away.T) - np.eye(5)).max() < 0.25, "each minimum by itself"
    np.testing.assert_array_equal(frontier._scattered(p, point, drawn), frontier._scattered(p, point, drawn))


def test_noise_that_explains_the_scatter_is_not_added_again() -> None:
    p, point, _ = scatter([0.001, -0.001, 0.001, -0.001, 0.001])
    noisy = law(FLOPS) * np.exp(0.5 * np.random.default_rng(0).normal(size=(500, 5)))
    np.testing.assert_array_equal(frontier._scattered(p, point, noisy), noisy)
    p, point, _ = scatter([0.1, -0.1, 0.1, -0.1, 0.1])
    zeros = np.tile(law(FLOPS), (400, 1))
    zeros[::3] = 0.0
    away = frontier._scattered(p, point, zeros)
    assert (away[::3] == 0).all()
    assert (away[1::3] != zeros[1::3]).mean() > 0.99, "draws without a minimum say nothing of the noise"
    one = fit_problem.problem(
        FRONTIER, (FLOPS[:4],), law(FLOPS[:4]) * np.exp([0.1, -0.1, 0.1, -0.1]), objectives.Squared()
    )
    flat = np.tile(law(FLOPS[:4]), (5, 1))
    assert (frontier._scattered(one, multistart.fit_point(one), flat) != flat).any(), (
        "four points leave one degree of freedom"
    )
    four = fit_problem.problem(FRONTIER_NO_FLOOR, (FLOPS[:2],), law(FLOPS[:2]), objectives.Squared())
    exact = multistart.fit_point(four)
    same = np.ones((3, 2))
    assert frontier._scattered(four, exact, same) is same, "two points and two constants show no scatter"
    none = np.empty((0, 5))
    assert frontier._scattered(p, point, none) is none


def judged(draws: Any, form: Any = FRONTIER, df: int = 1) -> Frontier:
    params = {"L_inf": 2.0, "a": 0.5, "alpha": 0.2}
    block = Frontier(form="", approach="frontier", loss_function="", params={n: params[n] for n in form.names})
    return frontier._judged(block, np.asarray(draws), 2.2, df=df)


def test_two_points_fix_any_two_constants() -> None:
    """An interval of the noise of two minima says nothing of whether a power law goes through them."""
    draws = np.exp(np.log([2.0, 0.5, 0.2]) + 0.01 * np.random.default_rng(0).normal(size=(400, 3)))
    found = judged(draws, FRONTIER_NO_FLOOR, df=0)
    assert found.intervals == {"a": None, "alpha": None}
    assert {(v.identified, v.reason) for v in found.identified.values()} == {
        (False, "two points fix any law of two constants")
    }
    for count, known in ((2, False), (3, True)):
        some, generator = FLOPS[:count], np.random.default_rng(0)
        loss = law(some, floor=0.0, alpha=0.1)
        drawn = loss * np.exp(1e-3 * generator.normal(size=(200, count)))
        block = fitted(frontier.fit(EMPTY, replace(valleys_of(some, loss), draw_loss=drawn))).block
        assert {v.identified for v in block.identified.values()} == {known}
        assert {interval is not None for interval in block.intervals.values()} == {known}


def test_what_the_draws_say_of_the_constants() -> None:
    generator = np.random.default_rng(0)
    good = np.exp(np.log([2.0, 0.5, 0.2]) + 0.1 * generator.normal(size=(400, 3)))
    found = judged(good)
    for i, name in enumerate(("L_inf", "a", "alpha")):
        assert found.intervals[name] == resampling.interval(good[:, i], found.params[name], logs=True)
        assert found.identified[name].identified
        assert found.identified[name].reason == ""
    doubled = good * [2.0, 1.0, 1.0]  # beyond the estimate, and mirrored in logs
    assert judged(doubled).intervals["L_inf"] == resampling.interval(doubled[:, 0], 2.0, logs=True)
    assert judged(doubled).intervals["L_inf"] != resampling.interval(doubled[:, 0], 2.0, logs=False)
    bare = judged(good, FRONTIER_NO_FLOOR)
    assert set(bare.intervals) == {"a", "alpha"}
    assert all(v.identified for v in bare.identified.values())
    few = judged(np.empty((0, 3)))
    assert {v.reason for v in few.identified.values()} == {"its points have no resamples"}
    assert not any(v.identified for v in few.identified.values())


def test_a_floor_on_its_bound_takes_all_constants_with_it() -> None:
    generator = np.random.default_rng(0)
    draws = np.exp(np.log([2.0, 0.5, 0.2]) + 0.1 * generator.normal(size=(400, 3)))
    draws[:40, 0] = 0.0
    found = judged(draws)
    assert found.intervals == dict.fromkeys(("L_inf", "a", "alpha"))
    assert {name: v.reason for name, v in found.identified.items()} == {
        "L_inf": "resamples put L_inf on its bound 0", "a": "it trades with L_inf: resamples put L_inf on its bound 0",
        "alpha": "it trades with L_inf: resamples put L_inf on its bound 0",
    }  # fmt: skip
    assert not any(v.identified for v in found.identified.values())
    verdict = found.identified["L_inf"]
    assert verdict.side == "upper"
    assert verdict.limit == pytest.approx(float(np.quantile(draws[:, 0], 0.95)))
    none = judged(draws * [1e-9, 1, 1]).identified["L_inf"]
    assert (none.side, none.limit) == (None, None), "all draws on the bound are no limit"
    for low, identified in ((0.0021, False), (0.0023, True)):
        edge = np.array(draws)
        edge[:, 0] = np.maximum(edge[:, 0], low)
        assert judged(edge).identified["L_inf"].identified == identified
    limit = np.array(draws)
    limit[:, 0] = 0.00215
    assert judged(limit).identified["L_inf"].limit is None
    limit[:, 0] = np.linspace(0.0, 0.01, 400)
    assert judged(limit).identified["L_inf"].limit == 2.0, "a limit leaves the estimate within"
    lost = np.array(draws)
    lost[:3] = np.nan
    assert judged(lost).identified["L_inf"].limit == pytest.approx(float(np.nanquantile(lost[:, 0], 0.95)))


def test_intervals_come_from_the_draws_of_the_minima() -> None:
    noise = np.random.default_rng(1).normal(size=(200, 5))
    drawn = law(FLOPS) * np.exp(0.002 * noise)
    found = fitted(frontier.fit(EMPTY, valleys_of(FLOPS, law(FLOPS), drawn)))
    assert found.draws.shape == (200, 3)
    for name, value in (("L_inf", 2.0), ("a", 0.5), ("alpha", 0.2)):
        low, high = found.block.intervals[name] or (np.nan, np.nan)
        assert low < value < high
    value, draws = found.predict(1e18)
    assert value == pytest.approx(law(1e18), rel=1e-5)
    assert draws.std() == pytest.approx(0.002 * value * np.sqrt(0.35), rel=0.4)
    replaced = replace(found, draws=found.draws[:3]).predict(1e18)[1]
    np.testing.assert_array_equal(replaced, draws[:3])
