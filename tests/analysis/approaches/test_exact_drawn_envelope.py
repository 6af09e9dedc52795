"""The envelope of drawn curves, decided by a few leaders of each budget, against all curves looked at each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.approaches import drawn_envelope, envelope
from analysis.approaches.drawn_envelope import Leaders


def curves(count: int, seed: int, *, alike: bool = False) -> tuple[Any, Any]:
    """Return ln losses (K, 40) that go over stretches of the budgets, and ln sizes, a few of them equal."""
    random = np.random.default_rng(seed)
    losses = random.normal(size=(count, 40))
    if alike:
        losses = np.round(losses, 1)
    begin, end = random.integers(0, 30, size=count), random.integers(10, 41, size=count)
    at = np.arange(40)[None]
    losses[(at < begin[:, None]) | (at >= end[:, None])] = np.inf
    losses[:, 3] = np.inf
    return losses, np.round(random.normal(size=count), 2 if count > 5 else 0)


def by_all(losses: Any, sizes: Any, drawn: Any) -> tuple[Any, ...]:
    """Return the numbers of the lowest curves, their losses, and the smallest and largest sizes, budget by budget."""
    found: list[tuple[float, ...]] = []
    for column in losses.T:
        there = [k for k in np.lexsort((np.arange(len(sizes)), sizes)) if drawn[k] and np.isfinite(column[k])]
        if not there:
            found.append((-1, np.inf, np.nan, np.nan))
            continue
        least = min(column[k] for k in there)
        lowest = next(k for k in there if column[k] <= least + 1e-9 * abs(least))
        found.append((lowest, least, sizes[there[0]], sizes[there[-1]]))
    return tuple(zip(*found, strict=True))


@pytest.mark.parametrize("looked_at", [1, 2, 5, 32])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("count", [1, 3, 31, 32, 33, 90])
def test_a_few_leaders_decide_as_all_curves_do(
    count: int, alike: bool, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn_envelope, "LOOKED_AT", looked_at)
    monkeypatch.setattr(drawn_envelope, "CELLS", 7 * count)
    losses, sizes = curves(count, seed=count, alike=alike)
    leaders, random = Leaders.of(losses, sizes), np.random.default_rng(1)
    for share in (0.0, 0.1, 0.63, 1.0):
        drawn = random.random(count) < share
        for one, other in zip(leaders.among(drawn), by_all(losses, sizes, drawn), strict=True):
            np.testing.assert_array_equal(one, other)


def test_equal_losses_within_rounding_are_the_smaller_models() -> None:
    losses = np.array([[1.0, 2.0], [1.0 - 0.9e-9, 2.0 - 1e-6], [1.0 + 0.05e-9, 3.0]])
    leaders = Leaders.of(losses, np.array([5.0, 7.0, 4.0]))
    assert leaders.among(np.array([True, True, True])).curve.tolist() == [2, 1]
    assert leaders.among(np.array([True, True, False])).curve.tolist() == [0, 1]


@pytest.mark.parametrize("hull", [False, True])
@pytest.mark.parametrize("count", [4, 60])
def test_exponents_of_drawn_runs_are_those_of_the_curves_drawn(count: int, hull: bool) -> None:
    random = np.random.default_rng(3)
    sizes = np.sort(random.uniform(2.0, 6.0, size=count))
    at = np.linspace(0.0, 10.0, 50)
    losses = 1.0 + 0.02 * (at[None] - 2.0 * (sizes[:, None] - 1.5)) ** 2 + 0.3 * np.exp(-0.1 * at[None])
    losses[at[None] < 0.5 * sizes[:, None]] = np.inf
    tokens = at[None] - sizes[:, None]
    found = envelope._slopes(losses, sizes, tokens, at, resamples=30, seed=5, hull=hull)
    generator = np.random.default_rng(np.random.SeedSequence([5, 6]))
    for params, data in zip(found["params"], found["tokens"], strict=True):
        kept = np.unique(generator.integers(count, size=count))
        picked = envelope._picked(losses[kept], sizes[kept], at if hull else None)
        there = np.flatnonzero(picked >= 0)
        if len(np.unique(picked[there])) < 2:
            assert np.isnan(params) and np.isnan(data)
            continue
        x = at[there] - at[there].mean()
        assert params == x @ sizes[kept][picked[there]] / (x @ x)
        assert data == x @ tokens[kept][picked[there], there] / (x @ x)
