"""The rows that a fit uses, as arrays: budgets grouped by exact FLOPs, model sizes grouped where they repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

SAME_SIZE = 5e-3
SAME_BUDGET = 1e-2
ONE_RATIO = 2.0
"""Runs whose tokens per parameter lie within this factor do not tell the terms of N and D apart."""


@dataclass(frozen=True)
class Rows:
    """n rows: columns (n,) by name, and the numbers (n,) of the groups that rows belong to.

    `columns` holds what laws read (params, tokens, exact FLOPs, loss, unique_tokens, lr, ...), NaN where a row has
    none. `size` numbers the model sizes, and `run` the runs where several rows are checkpoints of one; it is None where
    every row is a run of its own. `budget` numbers the FLOP budgets, rising, and `labels` are their nominal FLOPs (or
    the exact ones where none were given) by number. `keys` are the rows' names. A table that only laws read has
    neither budgets nor names: these are empty.
    """

    columns: Mapping[str, Array]
    size: Index
    run: Index | None = None
    budget: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    labels: Array = field(default_factory=lambda: np.empty(0))
    keys: tuple[str, ...] = ()

    @property
    def params(self) -> Array:
        """Parameters (n,)."""
        return self.columns["params"]

    @property
    def tokens(self) -> Array:
        """Tokens (n,)."""
        return self.columns["tokens"]

    @property
    def flops(self) -> Array:
        """Exact FLOPs (n,)."""
        return self.columns["flops"]

    @property
    def loss(self) -> Array:
        """Final losses (n,)."""
        return self.columns["loss"]

    @property
    def run_numbers(self) -> Index:
        """The runs' numbers (n,), also where every row is a run of its own."""
        return np.arange(len(self)) if self.run is None else self.run

    def column(self, name: str) -> Array:
        """Return a column (n,); ValueError where it is not there."""
        if name not in self.columns:
            held = ", ".join(self.columns)
            raise ValueError(f"the runs have no column {name!r}; map it with columns={name}:COLUMN (there are {held})")
        return self.columns[name]

    def replaced(self, **columns: Array) -> Rows:
        """Return the rows with other values (n,) in these columns; groups stay."""
        return replace(self, columns={**self.columns, **columns})

    def __len__(self) -> int:
        return len(self.size)

    def take(self, mask: Mask) -> Rows:
        """Return the rows of `mask`, with their groups numbered anew."""
        index = np.flatnonzero(mask)
        labels, budget = np.unique(self.budget[index] if len(self.budget) else self.budget, return_inverse=True)
        return Rows(
            {name: values[index] for name, values in self.columns.items()},
            _numbered(self.size[index]),
            None if self.run is None else _numbered(self.run[index]),
            np.asarray(budget, dtype=np.int64),
            self.labels[labels],
            tuple(self.keys[i] for i in index) if self.keys else (),
        )


def _numbered(groups: Index) -> Index:
    """Return group numbers from 0 without gaps."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def rows(
    keys: tuple[str, ...],
    *,
    params: Array,
    tokens: Array,
    flops: Array,
    loss: Array,
    nominal: Array | None = None,
    size: Index | None = None,
    run: Index | None = None,
    extra: Mapping[str, Array] | None = None,
) -> Rows:
    """Return the rows with their groups.

    `nominal` holds FLOP budgets, NaN where a run has none; `size` the groups of one model size, where they are known
    better than by equal parameters; `run` as in :class:`Rows`; `extra` further columns.
    """
    named = {"params": params, "tokens": tokens, "flops": flops, "loss": loss}
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in named.items()} | dict(extra or {})
    exact = columns["flops"]
    asked = np.full(len(keys), np.nan) if nominal is None else np.asarray(nominal, dtype=np.float64)
    budget, labels = _budgets(exact, asked)
    sizes = clusters(columns["params"], SAME_SIZE) if size is None else size
    return Rows(columns, sizes, run, budget, labels, keys)


def budget_levels(exact: Array, nominal: Array) -> Array:
    """Return the nominal FLOPs (n,) of each row's budget; `nominal` is NaN where a row names none."""
    budget, labels = _budgets(exact, nominal)
    return np.asarray(labels[budget], dtype=np.float64)


def _budgets(exact: Array, nominal: Array) -> tuple[Index, Array]:
    """Return each row's number of its budget (n,), rising with FLOPs, and the budgets' nominal FLOPs by number."""
    budget = clusters(np.where(np.isfinite(nominal), nominal, exact), SAME_BUDGET)
    count = int(budget.max(initial=-1)) + 1
    return budget, np.array([_label(exact[budget == g], nominal[budget == g]) for g in range(count)])


def _label(exact: Array, nominal: Array) -> float:
    """Return a budget's nominal FLOPs, else the geometric mean of its runs' exact FLOPs."""
    known = nominal[np.isfinite(nominal)]
    return float(known[0]) if len(known) else float(np.exp(np.log(exact).mean()))


def clusters(values: Array, tolerance: float) -> Index:
    """Return group numbers, rising with the value.

    A relative gap above `tolerance` begins a new group, and so does a span above twice that: a dense cloud of values
    is not one group.
    """
    logs = np.log(values)
    out = np.empty(len(values), dtype=np.int64)
    number, first, before = -1, -np.inf, -np.inf
    for i in np.argsort(logs, kind="stable"):
        if logs[i] - before > tolerance or logs[i] - first > 2 * tolerance:
            number, first = number + 1, logs[i]
        out[i], before = number, logs[i]
    return out


def one_ratio(params: Array, tokens: Array) -> float | None:
    """Return the tokens per parameter of runs (n,) that do not tell N and D apart; None where their ratios differ."""
    ratio = tokens / params
    return float(np.median(ratio)) if float(ratio.max() / ratio.min()) <= ONE_RATIO else None


def of_pandas(table: Any) -> Any:
    """Return pandas' frame of one of polars or Arrow, and anything else as it is."""
    convert = getattr(table, "to_pandas", None)
    return convert() if callable(convert) and hasattr(table, "columns") else table


def is_tidy(table: object) -> bool:
    """Return whether this is a frame that `analysis.load` returned: its rows are judged."""
    return {"used", "drop_code"} <= set(getattr(table, "columns", ()))
