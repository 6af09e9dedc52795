"""What is picked among equals does not depend on the last digits, which differ by processor, nor on the rows' order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import envelope, frontier, isoflop, settings, valleys
from analysis.estimation import ties
from tests.analysis import studies


def other(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the rows in another order, with losses that differ in their last digits."""
    generator = np.random.default_rng(seed)
    out = table.assign(loss=table["loss"] * (1.0 + 4e-16 * generator.integers(-3, 4, len(table))))
    return out.iloc[generator.permutation(len(table))].reset_index(drop=True)


def equal_losses() -> pd.DataFrame:
    """Return budgets whose losses, printed with two digits, have two or three lowest ones."""
    table = studies.isoflop(0, ratios=tuple(np.geomspace(0.01, 100, 9)), budgets=(4e11, 1.2e12, 4e12, 1.3e13))
    valley = 3.0 + 0.02 * np.round(np.abs(np.tile(np.arange(9) - 4.5, 4)))
    return table.assign(loss=valley)


def swept() -> pd.DataFrame:
    """Return sweeps of four cells in which two rates, and two batches of each, have the lowest loss."""
    n, d, a, b = (
        x.ravel() for x in np.meshgrid([1e7, 1e8], [1e9, 4e9], np.geomspace(1e-3, 1.6e-2, 5), [1e5, 2e5, 4e5])
    )
    loss = 3.0 + 0.01 * np.maximum(np.abs(np.round(np.log2(a / 3e-3))), 1.0) + 0.01 * (b > 3e5)
    return pd.DataFrame({"params": n, "tokens": d, "flops": 6 * n * d, "lr": a, "batch_tokens": b, "loss": loss})


def straight() -> pd.DataFrame:
    """Return curves of seven models, each of three checkpoints: straight in the logs between them, as the hull is."""
    n, k = (x.ravel() for x in np.meshgrid(np.geomspace(1e6, 1e9, 7), [1.0, 20.0, 400.0], indexing="ij"))
    loss = 1.7 + 400 / n**0.34 + 900 / (n * k) ** 0.34
    return pd.DataFrame({"run": n, "params": n, "tokens": n * k, "flops": 6 * n * n * k, "loss": loss})


def _optima(method: str, nearest: int | None = None) -> Callable[[pd.DataFrame], Any]:
    return lambda table: isoflop.optima(table, method, nearest)[["params_opt", "loss_opt"]].to_numpy()


def _sweeps(method: str) -> Callable[[pd.DataFrame], Any]:
    def call(table: pd.DataFrame) -> Any:
        found = settings.optima(table, 0.02, method)
        assert len(found) == 4
        return found[["lr", "batch_tokens"]].fillna(-1.0).to_numpy()

    return call


def _envelope(hull: bool) -> Callable[[pd.DataFrame], Any]:
    def call(table: pd.DataFrame) -> Any:
        found = envelope.fit(table, grid=300, resamples=0, hull=hull)
        laws = [found.exponents[name] for name in ("params", "tokens")]
        return np.array([[law.exponent, law.coefficient, law.points] for law in laws])

    return call


def _valleys(table: pd.DataFrame) -> Any:
    return np.array([v.coefficients for v in valleys.fit(studies.as_rows(table), resamples=0, seed=0).block.valleys])


def _frontier(table: pd.DataFrame) -> Any:
    rows = studies.as_rows(table.assign(flops_budget=table["flops"], flops=table["flops"] * (1 + 1e-4 * table.index)))
    none = valleys.fit(studies.as_rows(table.iloc[:2]), resamples=0, seed=0)
    found = frontier.fit(rows, none)
    points = found.block.points if isinstance(found, frontier.FrontierFit) else found.points
    return np.array([[p.loss] for p in points])


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (_optima("parabola", 4), equal_losses), (_optima("akima"), equal_losses), (_optima("surface"), equal_losses),
        (_sweeps("minimum"), swept), (_sweeps("envelope"), swept), (_sweeps("quadratic"), swept),
        (_envelope(False), straight), (_envelope(True), straight), (_valleys, equal_losses), (_frontier, equal_losses),
    ],
    ids=["parabola", "akima", "surface", "grid", "envelope of sweeps", "quadratic", "envelope", "hull", "valleys",
         "frontier"],
)  # fmt: skip
def test_equal_losses_are_told_apart_by_a_rule(call: Any, table: Callable[[], pd.DataFrame]) -> None:
    first = call(table())
    for seed in range(4):
        np.testing.assert_allclose(call(other(table(), seed)), first, rtol=1e-6)


def test_the_lowest_of_equals_is_the_smallest_model() -> None:
    values = np.array([2.0, 1.0 + 1e-12, 1.0, np.nan, 1.0])
    assert ties.lowest(values) == 1
    assert ties.lowest(values, np.array([1.0, 9.0, 3.0, 0.0, 3.0])) == 2
    assert ties.lowest(values, np.zeros(5), np.array([1.0, 9.0, 3.0, 0.0, 2.0])) == 4
    assert ties.lowest(np.array([1e12, 5.0, 4.0])) == 2, "a diverged run does not make all others equal"
    assert ties.lowest_rows(np.array([[2.0, 1.0, np.inf], [2.0 - 1e-12, 0.9, np.inf]])).tolist() == [0, 1, 0]


def test_a_flat_valley_is_flat_by_every_method() -> None:
    table = studies.isoflop(0, ratios=(1, 2, 4, 8, 16)).assign(loss=3.0)
    for seed in range(3):
        for method in ("parabola", "surface"):
            assert set(isoflop.optima(other(table, seed), method)["status"]) == {"flat"}
        assert set(isoflop.optima(other(table, seed), "akima")["status"]) == {"edge"}
