"""The rows that a fit uses, as arrays: budgets grouped by exact FLOPs, model sizes grouped where they repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

SAME_SIZE = 5e-3
SAME_BUDGET = 1e-2


@dataclass(frozen=True)
class Rows:
    """n runs: parameters, tokens, exact FLOPs, loss; `budget` and `size` are group numbers, rising.

    `labels` are the budgets' nominal FLOPs (or the exact ones where none were given), by group number. `run` numbers
    the runs where several rows are checkpoints of one, and is None where every row is a run of its own. `extra` holds
    further columns by name (unique_tokens, lr, batch_tokens and whatever else a law reads), NaN where a row has none.
    """

    keys: tuple[str, ...]
    params: Array
    tokens: Array
    flops: Array
    loss: Array
    budget: Index
    size: Index
    labels: Array
    run: Index | None = None
    extra: Mapping[str, Array] = field(default_factory=dict)

    def column(self, name: str) -> Array:
        """Return a column (n,) by name: params, tokens, flops, loss or one of `extra`; ValueError where it is not."""
        if name in ("params", "tokens", "flops", "loss"):
            values: Array = getattr(self, name)
            return values
        if name not in self.extra:
            held = ", ".join(("params", "tokens", "flops", "loss", *self.extra))
            raise ValueError(f"the runs have no column {name!r}; map it with columns={name}:COLUMN (there are {held})")
        return self.extra[name]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, mask: Mask) -> Rows:
        """Return the rows of `mask`, with their groups numbered anew."""
        index = np.flatnonzero(mask)
        labels, budget = np.unique(self.budget[index], return_inverse=True)
        _, size = np.unique(self.size[index], return_inverse=True)
        return Rows(
            tuple(self.keys[i] for i in index),
            self.params[index],
            self.tokens[index],
            self.flops[index],
            self.loss[index],
            np.asarray(budget, dtype=np.int64),
            np.asarray(size, dtype=np.int64),
            self.labels[labels],
            None if self.run is None else np.asarray(np.unique(self.run[index], return_inverse=True)[1], np.int64),
            {name: values[index] for name, values in self.extra.items()},
        )


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
    better than by equal parameters; `run` and `extra` as in :class:`Rows`.
    """
    values = [np.asarray(a, dtype=np.float64) for a in (params, tokens, flops, loss)]
    asked = np.full(len(keys), np.nan) if nominal is None else np.asarray(nominal, dtype=np.float64)
    budget = clusters(np.where(np.isfinite(asked), asked, values[2]), SAME_BUDGET)
    count = int(budget.max(initial=-1)) + 1
    labels = np.array([_label(values[2][budget == g], asked[budget == g]) for g in range(count)])
    sizes = clusters(values[0], SAME_SIZE) if size is None else size
    return Rows(keys, values[0], values[1], values[2], values[3], budget, sizes, labels, run, dict(extra or {}))


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
