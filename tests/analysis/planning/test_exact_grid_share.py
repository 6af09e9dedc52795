"""How much of a grid's compute chosen runs need: on given errors, and errors of simulated studies by least squares."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.estimation.objectives import Squared
from analysis.inputs.dataset import Array, Index
from analysis.planning import grid_share, next_runs, posterior
from tests.analysis.planning.test_exact_design import COLUMNS, made
from tests.analysis.planning.test_exact_next_runs import candidates

STUDIES = np.random.default_rng(0).normal(size=200)


@pytest.mark.parametrize(
    ("spreads", "share", "runs", "reached"),
    [
        ({12: 0.5, 1: 0.9, 2: 0.8, 3: 0.7, 4: 0.5}, (1 + 2 + 3 + 4) / 36, 4, 0.5),
        ({12: 0.5, 1: 0.5}, 1 / 36, 1, 0.5),
        ({12: 0.5, **dict.fromkeys(range(1, 9), 0.6)}, None, 8, 0.6),
        ({12: 0.901}, None, 8, 1.0),  # it tells nothing
        ({12: 0.89, 1: 0.8}, 1 / 36, 1, 0.8),
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

    def errors(chosen: Index) -> Array:
        extra = len(chosen) - 10
        own = chosen[10:]
        assert own.tolist() == (list(range(10, 22)) if extra == 12 else list(range(22, 22 + extra)))
        return STUDIES / grid_share.spread(STUDIES) * {0: 1.0, **spreads}[extra]

    def simulate(_setting: Any, columns: Any, studies: int, seed: int) -> Any:
        assert (studies, seed, len(columns[0])) == (7, 3, 10 + 12 + 8)
        return SimpleNamespace(errors=errors)

    monkeypatch.setattr(posterior, "batch", batch)
    monkeypatch.setattr(grid_share, "simulate", simulate)
    told = grid_share.simulated(setting, rows, 7, 3)
    assert asked == [(pool.flops.tolist(), {"budget": 36.0, "count": 40, "power": None})]
    assert told.share == (None if share is None else pytest.approx(share))
    assert replace(told, share=None, sd_now=1.0, sd_grid=spreads[12], sd_chosen=reached) == next_runs.Share(
        None, runs, 12, 36.0, 1.0, spreads[12], reached, 7
    )
    assert (told.sd_now, told.sd_grid, told.sd_chosen) == pytest.approx((1.0, spreads[12], reached))


def test_ever_larger_numbers_of_runs_are_simulated_and_all_of_them() -> None:
    assert grid_share._steps(0) == [0]
    assert grid_share._steps(1) == [1]
    assert grid_share._steps(7) == [1, 2, 3, 4, 5, 6, 7]
    assert grid_share._steps(50)[-2:] == [40, 50]
    assert grid_share._steps(40) == [1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40]


def test_designs_that_are_alike_by_luck_are_not_called_as_narrow() -> None:
    """Of designs that tell the same one in twenty is called so; of one that is wider by a tenth hardly any."""
    generator = np.random.default_rng(1)
    alike, wider = 0, 0
    for _ in range(60):
        own, others = generator.normal(size=(2, 100))
        alike += grid_share.as_narrow(own, others, generator)
        wider += grid_share.as_narrow(1.1 * own, others, generator)
        assert grid_share.as_narrow(0.99 * own, own, generator), "on the same studies a little less is seen"
    assert alike <= 8
    assert wider <= 3


@pytest.mark.parametrize("misfit", [1e-6, 0.005])
def test_simulated_studies_err_as_least_squares_does(misfit: float) -> None:
    """Of a = j (J'J)^-1 J' the error is a (f + noise e) - f at the target, f the form's smooth error."""
    found = made(noise=0.003, misfit=misfit)
    aims = found.to_logs(([3e7, 1e7], [6e8, 1e9]))
    setting: Any = SimpleNamespace(posterior=found, problem=SimpleNamespace(loss=Squared()), aims=aims)
    theta = found.basins[0].theta[None]
    studies = grid_share.simulate(setting, COLUMNS, 400, 0)
    every = np.arange(len(COLUMNS[0]))
    for chosen in (every, every[::2]):
        x = found.to_logs(COLUMNS)[:, chosen]
        aim = found.form.jacobian(theta, aims[:, :1])[0][0]
        weight = np.append(aim @ np.linalg.pinv(found.form.jacobian(theta, x)[0]), -1.0)
        both = np.concatenate((x, aims[:, :1]), axis=1)
        errors = posterior.alike(found, both, both) + 0.003**2 * np.diag([1.0] * x.shape[1] + [0.0])
        expected = math.sqrt(weight @ errors @ weight)
        assert grid_share.spread(studies.errors(chosen)) == pytest.approx(expected, rel=0.15)
