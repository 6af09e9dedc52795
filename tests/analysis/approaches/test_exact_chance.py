"""Which groups of runs of nearly equal FLOPs are budgets, and which chance explains."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.approaches import chance, valleys
from analysis.inputs.dataset import Rows, rows
from benchmarks import analysis_intervals
from tests.analysis import studies


def of(flops: np.ndarray, nominal: np.ndarray | None = None) -> Rows:
    n = len(flops)
    params = np.geomspace(1e7, 1e9, n)
    keys = tuple(map(str, range(n)))
    return rows(keys, params=params, tokens=flops / 6 / params, flops=flops, loss=np.full(n, 2.0), nominal=nominal)


@pytest.mark.parametrize("runs", [50, 100, 200])
def test_a_random_design_has_no_budgets(runs: int) -> None:
    groups, left = 0, 0
    for seed in range(10):
        study = analysis_intervals.study("random", runs, "normal", seed)
        several = np.bincount(study.budget) >= 3
        found = chance.budgets(study)
        groups, left = groups + int(several.sum()), left + int((several & ~found).sum())
        assert not (found & ~several).any()
        judged = valleys.fit(study, resamples=0, seed=0).block.valleys
        assert len([v for v in judged if v.points >= 3]) == (several & ~found).sum()
    assert left <= 0.1 * groups and (runs < 200 or groups > 10)


@pytest.mark.parametrize("design", ["isoflop", "grid"])
@pytest.mark.parametrize("runs", [20, 50, 200])
def test_budgets_that_were_meant_stay(design: str, runs: int) -> None:
    study = analysis_intervals.study(design, runs, "normal", 1)
    assert not chance.budgets(study).any()
    wide = np.exp(0.008 * np.random.default_rng(3).uniform(-1, 1, len(study)))
    assert not chance.budgets(of(study.flops * wide)).any(), "sizes are whole layers, and FLOPs nearly equal"


def test_a_few_budgets_among_random_runs_stay() -> None:
    draws = np.random.default_rng(4)
    anywhere = np.exp(draws.uniform(np.log(1e18), np.log(1e22), 100))
    meant = np.repeat([2e18, 5e19, 3e21], 7) * np.exp(draws.uniform(-0.008, 0.008, 21))
    study = of(np.concatenate((anywhere, meant)))
    found = chance.budgets(study)
    assert not found[np.unique(study.budget[100:][np.bincount(study.budget)[study.budget[100:]] >= 6])].any()
    named = of(anywhere, np.where(np.arange(100) < 4, 1e20, np.nan))
    assert not chance.budgets(named)[named.budget[0]]


def test_how_often_chance_brings_as_many() -> None:
    assert chance._at_least(0, 0.3) == 1.0
    assert chance._at_least(1, 0.3) == pytest.approx(1 - np.exp(-0.3))
    assert chance._at_least(2, 0.3) == pytest.approx(1 - 1.3 * np.exp(-0.3))
    assert chance._at_least(2, 0.0) == 0.0
    one = studies.as_rows(studies.isoflop(0).iloc[:5])
    assert not chance.budgets(one).any(), "one budget alone"
