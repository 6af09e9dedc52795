"""What a law reads of rows: :class:`analysis.inputs.dataset.Rows`, out of a table or a mapping of columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.inputs import counts
from analysis.inputs.dataset import SAME_SIZE, Array, Index, Rows, clusters, is_tidy, of_pandas, rows
from analysis.laws.base import Form
from train.spec import calls

SIZES = ("params", "params_active", "params_non_embedding")
OTHERS = ("params", "tokens", "flops", "unique_tokens", "lr", "batch_tokens", "warmup_tokens", "setting_group",
          "loss")  # fmt: skip
HISTORY = ("epochs", "lowest_loss")
"""What findings read of a run's course; runs that differ in it alone are repeats."""


def table(runs: Any) -> Any:
    """Return what holds columns: of a frame that `analysis.load` returned, the rows that fits use.

    A fit stands for the frame of its runs. Raises ValueError for what holds no columns, such as the name of a file or
    of a study, which is not read here.
    """
    if isinstance(runs, (str, Path)):
        raise ValueError(f"runs={runs} is a name, and a table is needed: analysis.load({str(runs)!r})")
    held = of_pandas(runs) if hasattr(runs, "columns") else getattr(runs, "frame", runs)
    if not isinstance(held, (Rows, Mapping)) and not hasattr(held, "columns"):
        raise ValueError(
            f"runs={calls.shown(runs)} is no table: give a data frame or a mapping of columns, such as "
            "{'params': [1e9], 'tokens': [2e10]}"
        )
    if is_tidy(held):
        return held[held["used"].astype(bool)]
    return held


def inputs(runs: Any, form: Form) -> Array:
    """Return the form's inputs (k, n), positive numbers; ValueError names a column that is missing or is not."""
    columns = [np.atleast_1d(_positive(column(runs, name, form), name)) for name in form.inputs]
    lengths = {name: len(values) for name, values in zip(form.inputs, columns, strict=True)}
    if len(set(lengths.values()) - {1}) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise ValueError(f"the columns have different numbers of values: {said}; give one a run")
    return np.stack(np.broadcast_arrays(*columns))


def read(runs: Any, form: Form) -> Rows:
    """Return what a law reads of a table or a mapping, or Rows as they are, once its columns can be used.

    Raises ValueError naming a column that cannot.
    """
    found = inputs(runs, form)
    target = np.atleast_1d(_positive(column(runs, form.target, form), form.target))
    if target.shape != found.shape[1:]:
        raise ValueError(f"{form.target} has {target.size} values, the inputs {found.shape[1]}; give one a run")
    if not target.size:
        raise ValueError(
            f"runs= holds no row: one line per run is needed, with {', '.join(form.inputs)}, {form.target}"
        )
    if isinstance(runs, Rows):
        return runs
    columns = {**dict(zip(form.inputs, found, strict=True)), form.target: target}
    further = {name: values for name in (*OTHERS, *HISTORY) if (values := optional_column(runs, name)) is not None}
    columns = {**columns, **{name: values for name, values in further.items() if len(values) == len(target)}}
    size = group_column(runs, "size_group")
    if size is None:
        name = next((s for s in SIZES if s in form.inputs), next((s for s in SIZES if s in columns), ""))
        known = name in columns and bool((columns[name] > 0).all())
        size = clusters(columns[name], SAME_SIZE) if known else np.arange(len(target))
    return Rows(columns, size, group_column(runs, "run"))


def order(data: Rows, form: Form) -> Index:
    """Return the rows' numbers in an order of their values: what is drawn by it does not depend on the file's."""
    return np.lexsort((data.size, data.columns[form.target], *inputs(data, form)[::-1])).astype(np.int64)


def cells(data: Rows, form: Form) -> Index:
    """Return the number of each row's setting, equal for repeats with other seeds.

    Rows that differ in a rate, a batch or a size are no repeats.
    """
    others = [data.columns[name] for name in OTHERS if name in data.columns and name != "loss"]
    columns = np.stack([*inputs(data, form), *(values for values in others if np.isfinite(values).all())])
    with np.errstate(divide="ignore", invalid="ignore"):
        rounded = np.round(np.where(columns > 0, np.log(columns), columns), 9)
    return np.unique(rounded, axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def column(runs: Any, name: str, form: Form | None = None) -> Array:
    """Return a column as floats; ValueError where it is missing or is no number."""
    if isinstance(runs, Rows):
        values: Any = runs.column(name)
    elif name in runs:
        values = runs[name]
    else:
        what = f"{form.name} ({form.text}) needs it" if form is not None else "it is needed"
        held = ", ".join(str(k) for k in list(runs)[:30])
        raise ValueError(f"the runs have no column {name!r}: {what}; there are {held}")
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        read = counts.cells(values) if name in counts.COUNTS and np.ndim(values) else []
        wrong = next((i for i, cell in enumerate(read) if isinstance(cell, str)), None)
        if not read or wrong is not None:
            where = f"{error}" if wrong is None else f"{read[wrong]!r} in row {wrong + 1}"
            raise ValueError(f"column {name!r} holds what is not a number ({where})") from None
        return np.asarray(read, dtype=np.float64)


def _positive(values: Array, name: str) -> Array:
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        first = np.atleast_1d(values)[np.atleast_1d(bad)][0]
        rows = f" ({int(bad.sum())} of {bad.size} values)" if bad.size > 1 else ""
        raise ValueError(f"column {name!r}: positive numbers are needed, not {first:g}{rows}")
    return values


def optional_column(runs: Any, name: str) -> Array | None:
    """Return a column (n,) of positive numbers; None where the runs have none."""
    try:
        return np.atleast_1d(column(runs, name))
    except (ValueError, KeyError):
        return None


def by_first(groups: Index) -> Index:
    """Return group numbers (n,) counted from 0 in the order in which the groups first appear."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first, kind="stable"), kind="stable")[number.ravel()].astype(np.int64)


def group_column(runs: Any, name: str) -> Index | None:
    """Return a column of any kind as group numbers; None where a cell is empty: rows without names are no group."""
    if isinstance(runs, Rows):
        return runs.run if name == "run" else runs.size
    if name not in runs:
        return None
    values = np.asarray(runs[name])
    if any(_is_empty(value) for value in values.tolist()):
        return None
    return np.unique(values.astype(str), return_inverse=True)[1].astype(np.int64)


def _is_empty(value: object) -> bool:
    """Return whether a cell says nothing: no text, None, NaN or pandas' NA, whose text says so."""
    return value is None or str(value) in ("", "nan", "NaT", "<NA>")


def rows_of(runs: Any) -> Rows:
    """Return the positive rows of a table with their budgets and sizes; Rows as they are."""
    runs = table(runs)
    if isinstance(runs, Rows):
        return runs
    columns = {name: column(runs, name) for name in ("params", "tokens", "flops", "loss")}
    good = np.all([np.isfinite(values) & (values > 0) for values in columns.values()], axis=0)
    if not good.any():
        raise ValueError("runs= holds no row with positive params, tokens, flops and loss: one line per run is needed")
    further = {
        str(name): values[good]
        for name in runs
        if name not in (*columns, "flops_budget")
        and (values := optional_column(runs, name)) is not None
        and values.shape == good.shape
    }
    nominal = optional_column(runs, "flops_budget")
    run = group_column(runs, "run")
    size = group_column(runs, "size_group")
    return rows(
        tuple(f"row{i + 1}" for i in np.flatnonzero(good)),
        **{name: values[good] for name, values in columns.items()},
        nominal=None if nominal is None else nominal[good],
        size=None if size is None else size[good],
        run=None if run is None else run[good],
        extra=further,
    )
