"""Rows in two units are told apart whatever they go by, over designs, numbers of runs and scatter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.diagnostics import suspects, two_units
from analysis.diagnostics.two_units import BITS
from analysis.text import numbers
from tests.analysis import studies
from tests.analysis.diagnostics.unit_tables import made, named


def ways(table: pd.DataFrame) -> dict[str, Any]:
    """Return the rows by what units go by in tables that were put together from two sources."""
    rows = studies.as_rows(table)
    size, tokens = rows.params, rows.tokens
    groups = rows.budget if rows.budget.max() < len(rows) / 2 else rows.size
    by = size if groups is rows.budget else tokens
    place = two_units._places(groups, by)
    last = two_units._places(groups, -by)
    every: dict[str, Any] = {"least": place == 0, "most": last == 0, "second": place == 1}
    for name, values in (("ratio", tokens / size), ("flops", size * tokens), ("size", size), ("tokens", tokens)):
        every |= {f"low {name}": values < np.quantile(values, 0.25), f"high {name}": values > np.quantile(values, 0.75)}
    return {name: mask for name, mask in every.items() if 3 <= mask.sum() <= 0.6 * len(mask)}


CASES = [
    (kind, count, noise, seed)
    for seed, (kind, count, noise) in enumerate(
        (kind, count, noise)
        for kind in ("isoflop", "ladder", "random")
        for count, noise in ((20, 0.003), (25, 0.01), (40, 0.03), (90, 0.02), (200, 0.005))
    )
]


@pytest.mark.parametrize(("kind", "count", "noise", "seed"), CASES)
def test_rows_in_bits_are_named_whatever_they_go_by_and_others_never(
    kind: str, count: int, noise: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest or largest size of every budget in bits: a quadratic bends to them, and right rows were named."""
    monkeypatch.setattr(numbers, "listed", ", ".join)
    table = made(kind, count, noise, seed)
    assert suspects.findings(studies.as_rows(table), "nats per token") == []
    for name, mask in ways(table).items():
        mixed = table.assign(loss=table["loss"] * np.where(mask, np.exp(BITS), 1.0))
        found = suspects.findings(studies.as_rows(mixed), "nats per token")
        wrong = {f"r{i}" for i in np.flatnonzero(mask)}
        every = {f"r{i}" for i in range(len(table))}
        assert [check.code for check in found] == ["mixed_units"], name
        both = "do not tell" in found[0].message
        assert named(found, "mixed_units") == (every if both else wrong), name
        assert both == (mask.sum() >= len(mask) / 3), name


@pytest.mark.parametrize("seed", range(6))
def test_all_of_a_third_of_the_rows_are_named_as_perplexities(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those nearest to the first curve alone were named."""
    monkeypatch.setattr(numbers, "listed", ", ".join)
    table = made(("isoflop", "ladder", "random")[seed % 3], (30, 64, 110)[seed // 2], (0.003, 0.02)[seed % 2], 3 * seed)
    table["loss"] = table["loss"] * 2.5 / table["loss"].max()
    wrong = np.random.default_rng(seed).permutation(len(table)) < len(table) / 3
    mixed = table.assign(loss=np.where(wrong, np.exp(table["loss"]), table["loss"]))
    (found,) = suspects.findings(studies.as_rows(mixed), "nats per token")
    assert found.code == "perplexity"
    assert named([found], "perplexity") == {f"r{i}" for i in np.flatnonzero(wrong)}
