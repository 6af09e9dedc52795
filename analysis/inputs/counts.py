"""Counts as people write them in tables, 1.3B parameters or 300M tokens: read as the command line reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis.text import numbers

COUNTS = (
    "params", "params_matmul", "params_total", "params_non_embedding", "params_active", "tokens", "unique_tokens",
    "flops", "flops_budget",
)  # fmt: skip
"""Columns in which a suffix of thousands is read. Not batches and sequences, where 4K may stand for 4,096."""


def cells(values: Iterable[Any]) -> list[Any]:
    """Return the cells of a column, those that are a number in words as this number and all others as they are."""
    return [value if (found := _number(value)) is None else found for value in values]


def counted(table: pd.DataFrame, names: Iterable[str] = COUNTS) -> pd.DataFrame:
    """Return the table with the named columns that are text as numbers, but for cells that are none."""
    read = {
        name: pd.Series(cells(table[name]), index=table.index, dtype=object).infer_objects()
        for name in names
        if name in table and not pd.api.types.is_numeric_dtype(table[name])
    }
    return table.assign(**read)


def _number(value: Any) -> float | None:
    """Return the number that a text writes; None where it is no text, or none of a number."""
    found = numbers.read(value) if isinstance(value, str) else float("nan")
    return None if math.isnan(found) else found
