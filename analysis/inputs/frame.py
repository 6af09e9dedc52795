"""From run folders, MLflow or a file to one tidy frame: a row a run, with the meaning of its numbers beside it.

Columns are in :data:`COLUMNS`. Runs that failed or are under way are rows too: `drop_code` and `drop_reason` say why
no fit uses them (both are empty for the rows that fits use). Run folders and MLflow give equal frames.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.inputs import learning
from analysis.inputs.columns import (
    BITS_PER_BYTE,
    COLUMNS,
    COMPARABLE_IN_BITS,
    EXTRA,
    LOSS_UNIT,
    ONE_KIND,
    OPTIONAL,
    PARAMS_KINDS,
    REQUIRED,
    empty,
)
from analysis.inputs.dataset import Index, Rows, rows
from analysis.inputs.gaps import beyond_gap
from analysis.inputs.rows import from_csv
from analysis.inputs.study import from_mlflow, from_runs
from analysis.text import numbers

OTHER_UNITS = 1000.0
"""FLOPs further than this factor from 6 N D are no other way of counting: sparse models stay below a hundred."""
OTHER_COUNTS = 300.0
"""Rows whose FLOPs over 6 N D lie in two groups this far apart are not counted in one unit."""

__all__ = [
    "BITS_PER_BYTE", "COLUMNS", "LOSS_UNIT", "OPTIONAL", "PARAMS_KINDS", "REQUIRED", "best", "checkpoints", "from_csv",
    "from_mlflow", "from_runs", "used",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame in which, of used rows with equal params, tokens and flops, only the lowest loss stays used.

    Runs of equal learning rate and batch are repeats, of which none is better than another: all of the best stay.
    """
    out = frame.copy()
    out.attrs = dict(frame.attrs)
    swept = [name for name in ("lr", "batch_tokens") if out[name].notna().any()]
    good = out[out["used"]]
    if not swept or not len(good):
        raise ValueError("select=best: the runs have neither lr nor batch_tokens; map them (columns=lr:COLUMN)")
    cell = ["params", "tokens", "flops"]
    mean = good.groupby([*cell, *swept], dropna=False)["loss"].transform("mean")
    lost = good.index[mean > mean.groupby([good[name] for name in cell], dropna=False).transform("min")]
    out.loc[lost, ["drop_code", "drop_reason"]] = ("not_best", f"another {' and '.join(swept)} gives a lower loss here")
    out["used"] = out["drop_code"] == ""
    return out


def used(frame: pd.DataFrame) -> Rows:
    """Return the rows that fits use, by budget and size; ValueError where kinds are mixed or none is left."""
    return _rows(frame, frame["used"])


def checkpoints(frame: pd.DataFrame) -> Rows:
    """Return the rows that fits use and the runs' earlier checkpoints: learning curves, for envelopes.

    Of a study's folder they are the validations that its runs wrote; elsewhere rows of the frame, where it has `run`.
    """
    mask = frame["used"] | (frame["drop_code"] == "mid_schedule")
    folder = frame.attrs.get("folder")
    if folder is None or not mask.any():
        return _rows(frame, mask)
    curves = learning.checkpoints(Path(folder), frame[mask])
    return _rows(curves, pd.Series(True, index=curves.index))


def none_left(frame: pd.DataFrame, to: str) -> str:
    """Return what to say of a frame without a row that is used: why rows were dropped, and what to do."""
    counts = ", ".join(f"{n} {code}" for code, n in frame["drop_code"].value_counts().items()) or "no run at all"
    first = next((str(reason) for reason in frame["drop_reason"] if reason), "")
    why = f"; the first: {first}" if first else ""
    return f"there is no finished run to {to} ({counts}){why}. Wait for the study, or fix the rows"


def _rows(frame: pd.DataFrame, mask: pd.Series[bool]) -> Rows:
    good = frame[mask]
    if not len(good):
        raise ValueError(none_left(frame, "fit"))
    for column, what in ONE_KIND.items():
        if column in COMPARABLE_IN_BITS and (good["loss_unit"] == BITS_PER_BYTE).all():
            continue
        kinds = sorted({str(v) for v in good[column] if not empty(v)})
        if len(kinds) > 1:
            raise ValueError(
                f"the runs mix {what}: {column} is {', '.join(kinds)}; fit them separately (where={column}:VALUE)"
                + (
                    "; losses in bits per byte can be compared (loss_unit='bits per byte')"
                    if column in COMPARABLE_IN_BITS
                    else ""
                )
            )
    _refuse_units(good)
    good = good.sort_values(["flops", "params", "key"], kind="stable")
    values = [good[name].to_numpy(dtype=np.float64) for name in (*REQUIRED, "flops_budget")]
    known = {name for name in COLUMNS if name not in EXTRA}
    further = {str(name): good[name] for name in good.columns if name not in known}
    return rows(
        tuple(good["key"]),
        params=values[0],
        tokens=values[1],
        flops=values[2],
        loss=values[3],
        nominal=values[4],
        size=_groups(good["size_group"]),
        run=_groups(good["run"]),
        extra={name: v.to_numpy(dtype=np.float64) for name, v in further.items() if v.notna().any()},
    )


def _refuse_units(good: pd.DataFrame) -> None:
    """Raise ValueError where FLOPs and 6 N D are so far apart that one of the three is in millions or the like."""
    named = {name: good[name].to_numpy(dtype=np.float64) for name in ("params", "tokens", "flops")}
    each = named["flops"] / (6.0 * named["params"] * named["tokens"])
    _refuse_mixed(good, each)
    ratio = float(np.median(each))
    if 1.0 / OTHER_UNITS < ratio < OTHER_UNITS or not np.isfinite(ratio):
        return
    held = ", ".join(f"{name} {numbers.brief(float(np.median(values)), 4)}" for name, values in named.items())
    raise ValueError(
        f"flops are {ratio:.2g} times 6 x params x tokens (medians: {held}): one of them is in other units. Counts are "
        "needed: columns=params:COLUMN*1e6 for millions, tokens:COLUMN*1e9 for billions, flops:COLUMN*1e15 for PFLOPs"
    )


def _refuse_mixed(good: pd.DataFrame, ratio: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Raise ValueError, with the rows' names, where FLOPs over 6 N D fall into two groups that no count explains."""
    below = beyond_gap(np.log(ratio), float(np.log(OTHER_COUNTS)))
    if below is None:
        return
    off = max((below, ~below), key=lambda mask: float(np.abs(np.log(ratio[mask])).mean()))
    where = np.flatnonzero(off)
    named = (
        f"{good['key'].iloc[i]} with params {numbers.brief(float(good['params'].iloc[i]), 4)}, "
        f"tokens {numbers.brief(float(good['tokens'].iloc[i]), 4)}"
        for i in where
    )
    rows = numbers.listed(named, "; ", most=3)
    there, elsewhere = (float(np.exp(np.log(ratio[mask]).mean())) for mask in (off, ~off))
    raise ValueError(
        f"{len(where)} of {len(good)} rows have one of params, tokens and flops in other units than the rest: flops "
        f"are {there:.2g} times 6 x params x tokens there, and {elsewhere:.2g} times elsewhere "
        f"({rows}). Write counts in every row, or leave these out (where=)"
    )


def _groups(column: pd.Series[Any]) -> Index | None:
    """Return group numbers of the texts; None where any is empty."""
    if (column == "").any():
        return None
    return np.asarray(pd.factorize(column, sort=True)[0], dtype=np.int64)
