"""Next runs: steps, grids and simulated studies, each by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.approaches import optimum
from analysis.approaches.cost import Cost
from analysis.estimation.objectives import Squared
from analysis.inputs.frame import used
from analysis.inputs.rows import from_csv
from analysis.planning import candidates as offers
from analysis.planning import next_runs, posterior
from analysis.planning.candidates import Candidates, Size
from tests.analysis import studies
from tests.analysis.planning.test_exact_design import COLUMNS, made


def test_ever_larger_numbers_of_runs_are_simulated_and_all_of_them() -> None:
    assert next_runs._steps(50) == [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50]
    assert next_runs._steps(40) == [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40]
    assert next_runs._steps(7) == [1, 2, 3, 4, 5, 6, 7]


def test_e_to_a_large_power_is_no_error() -> None:
    assert next_runs.np_exp(1.5) == math.exp(1.5)
    assert next_runs.np_exp(699.0) == math.exp(699.0)
    assert next_runs.np_exp(710.0) == math.inf


def candidates(params: Any, budget: float = 6e9) -> Candidates:
    sizes = tuple(Size(float(n)) for n in params)
    found = np.array([size.params for size in sizes])
    return Candidates(found, budget / 6 / found, np.arange(1.0, len(sizes) + 1.0), sizes)


def test_runs_are_joined_to_those_done() -> None:
    done = np.array([1.0, 2.0]), np.array([30.0, 40.0])
    pool = candidates([1e3, 1e4, 1e5])
    params, tokens = next_runs._joined(done, pool, [2, 0])
    assert params.tolist() == [1.0, 2.0, 1e5, 1e3]
    assert tokens.tolist() == [30.0, 40.0, 1e4, 1e6]
    assert next_runs._joined(done, pool, [])[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("asked", "near"), [(1.9e6, 1e6), (2.1e6, 4e6), (1e3, 1e6), (1e9, 4e6)])
def test_the_nearest_size_is_that_of_the_least_factor(asked: float, near: float) -> None:
    assert offers._nearest((Size(1e6), Size(4e6)), asked).params == near


@pytest.mark.parametrize(
    ("law", "best"),
    [(2e6, 2e6), (math.nan, 1e6), (2.9e7, 2.9e7), (3.1e7, 1e6), (3.4e4, 3.4e4), (3.3e4, 1e6)],
)
def test_a_best_size_far_from_twenty_tokens_per_parameter_is_not_believed(
    law: float, best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.2e14 FLOPs are 1e6 parameters at 20 tokens of each; within a factor of 30 the law's size counts."""
    found = SimpleNamespace(log_params=np.log([law]))
    monkeypatch.setattr(optimum, "training_only", lambda *_: found)
    on: Any = None
    assert next_runs._best(on, Cost.six(), 1.2e14, (1e5, 1e7)) == pytest.approx(best)


def test_a_grid_has_seven_sizes_over_a_factor_of_sixteen_at_each_budget() -> None:
    """A step is 2^(2/3): of offers a third of that apart every second one is taken, at C / (6 N) tokens."""
    offered = tuple(Size(8000 * 2 ** (k / 3)) for k in range(-12, 13))
    grid = offers.grid(offered, Cost.six(), np.array([6e9, 12e9]), np.array([8000.0, 16000.0]), (1e-9, 1e9))
    sizes = [8000 * 2 ** (k / 3) for k in (-6, -4, -2, 0, 2, 4, 6)]
    np.testing.assert_allclose(grid.params, [*sizes, *(2 * n for n in sizes)])
    np.testing.assert_allclose(grid.flops, [6e9] * 7 + [12e9] * 7)
    np.testing.assert_allclose(grid.tokens, grid.flops / 6 / grid.params)
    assert [size.params for size in grid.sizes] == grid.params.tolist()
    few = offers.grid((Size(8000.0), Size(16000.0)), Cost.six(), np.array([6e9]), np.array([8000.0]), (1e-9, 1e9))
    assert few.params.tolist() == [8000.0, 16000.0]


@pytest.mark.parametrize(
    ("spreads", "share", "runs", "reached"),
    [
        # One reading below the grid's by luck, the next above it; the fourth and the fifth are below.
        ({12: 0.5, 1: 0.9, 2: 0.4, 3: 0.7, 4: 0.5, 5: 0.45, 6: 0.3}, (1 + 2 + 3 + 4) / 36, 4, 0.45),
        ({12: 0.5, 1: 0.5, 2: 0.5}, 1 / 36, 1, 0.5),
        ({12: 0.5, **dict.fromkeys(range(1, 9), 0.6)}, None, 8, 0.6),
        ({12: 0.9}, None, 8, 1.0),  # it tells nothing
        ({12: 0.89, 1: 0.8, 2: 0.8}, 1 / 36, 1, 0.8),
    ],
)
def test_chosen_runs_reach_the_grids_interval_with_a_share_of_its_compute(
    spreads: dict[int, float], share: float | None, runs: int, reached: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten runs are done, the grid has twelve of 3 FLOPs each; eight runs of 1 to 8 are chosen."""
    pool = candidates(np.geomspace(1e5, 1e7, 8))
    rows: Any = SimpleNamespace(params=np.ones(10), tokens=np.ones(10))
    whole = replace(candidates(np.geomspace(1e5, 1e7, 12)), flops=np.full(12, 3.0))
    found = SimpleNamespace(to_logs=np.stack)
    setting: Any = SimpleNamespace(posterior=found, candidates=pool, grid=whole, aims=None)
    asked: list[Any] = []

    def batch(*given: Any, **more: Any) -> list[posterior.Choice]:
        asked.append((given[3].tolist(), more))
        return [posterior.Choice(i, 1.0, 1.0, 1.0) for i in range(8)]

    def spread(_setting: Any, columns: Any, studies: int, seed: int) -> float:
        assert (studies, seed) == (7, 3)
        extra = len(columns[0]) - 10
        return {0: 1.0, **spreads}[extra]

    monkeypatch.setattr(posterior, "batch", batch)
    monkeypatch.setattr(next_runs, "_spread", spread)
    told = next_runs._simulated(setting, rows, 7, 3)
    assert asked == [(pool.flops.tolist(), {"budget": 36.0, "count": 40, "power": None})]
    assert told.share == (None if share is None else pytest.approx(share))
    assert replace(told, share=None) == next_runs.Share(None, runs, 12, 36.0, 1.0, spreads[12], reached, 7)


@pytest.mark.parametrize("misfit", [1e-6, 0.005])
def test_simulated_studies_err_as_least_squares_does(misfit: float) -> None:
    """Of a = j (J'J)^-1 J' the error is a (f + noise e) - f at the target, f the form's smooth error."""
    found = made(noise=0.003, misfit=misfit)
    aims = found.to_logs(([3e7, 1e7], [6e8, 1e9]))
    setting: Any = SimpleNamespace(posterior=found, problem=SimpleNamespace(loss=Squared()), aims=aims)
    theta = found.basins[0].theta[None]
    x = found.to_logs(COLUMNS)
    slopes = found.form.jacobian(theta, x)[0]
    aim = found.form.jacobian(theta, aims[:, :1])[0][0]
    weight = np.append(aim @ np.linalg.pinv(slopes), -1.0)
    both = np.concatenate((x, aims[:, :1]), axis=1)
    errors = posterior.alike(found, both, both) + 0.003**2 * np.diag([1.0] * x.shape[1] + [0.0])
    expected = math.sqrt(weight @ errors @ weight)
    assert next_runs._spread(setting, COLUMNS, 400, 0) == pytest.approx(expected, rel=0.15)


def test_what_is_asked_of_a_study(tmp_path: Any) -> None:
    """Nine budgets from the smallest run to the largest next one, five of a grid, and three places at the target."""
    table = studies.isoflop(3, noise=0.001)
    path = tmp_path / "runs.csv"
    table.to_csv(path, index=False)
    frame = from_csv(path, params_kind="total")
    rows = used(frame)
    low, largest = float(rows.flops.min()), 2 * float(rows.flops.max())
    setting = next_runs._setting(frame, rows, "chinchilla", 30 * largest, largest, ratios=(1e-9, 1e9))
    np.testing.assert_allclose(np.unique(setting.candidates.flops), np.geomspace(low, largest, 9), rtol=1e-6)
    grid = np.geomspace(max(low, largest / 300), largest, 5)
    np.testing.assert_allclose(np.unique(setting.grid.flops), grid, rtol=1e-6)
    places = np.exp(setting.aims + setting.posterior.centres[:, None])
    np.testing.assert_allclose(places[0], setting.target_params * np.array([1.0, 0.5, 2.0]))
    np.testing.assert_allclose(places[0] * places[1], setting.target_params * setting.target_tokens, rtol=1e-3)
    assert setting.target_params * setting.target_tokens * 6 == pytest.approx(30 * largest, rel=1e-3)
    small = next_runs._setting(frame, rows, "chinchilla", 30 * largest, low / 29, ratios=(1e-9, 1e9))
    np.testing.assert_allclose(np.unique(small.candidates.flops)[[0, -1]], [low / 58, low / 29], rtol=1e-6)
    with pytest.raises(ValueError, match="less than a thirtieth of the smallest run"):
        next_runs._setting(frame, rows, "chinchilla", 30 * largest, low / 31, ratios=(1e-9, 1e9))
    for few in (rows.take(np.arange(len(rows)) < 3), rows.take(rows.size == rows.size[0])):
        with pytest.raises(ValueError, match="the posterior needs at least 4 runs of 2 sizes"):
            next_runs._setting(frame, few, "chinchilla", 30 * largest, largest, ratios=None)
