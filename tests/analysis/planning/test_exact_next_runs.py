"""Next runs: best sizes, grids and what is asked of a study, each by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.approaches import optimum
from analysis.approaches.cost import Cost
from analysis.inputs.frame import used
from analysis.inputs.rows import from_csv
from analysis.planning import candidates as offers
from analysis.planning import next_runs
from analysis.planning.candidates import Candidates, Size
from tests.analysis import studies


def test_e_to_a_large_power_is_no_error() -> None:
    assert next_runs.np_exp(1.5) == math.exp(1.5)
    assert next_runs.np_exp(699.0) == math.exp(699.0)
    assert next_runs.np_exp(710.0) == math.inf


def candidates(params: Any, budget: float = 6e9) -> Candidates:
    sizes = tuple(Size(float(n)) for n in params)
    found = np.array([size.params for size in sizes])
    return Candidates(found, budget / 6 / found, np.arange(1.0, len(sizes) + 1.0), sizes)


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
