"""What no law can be fitted to, or followed to: refused before it is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.estimation import ties
from analysis.inputs.dataset import Index
from analysis.laws.base import Array, Form
from analysis.text import numbers

if TYPE_CHECKING:
    from analysis.estimation.fit_problem import Problem
    from analysis.inputs.dataset import Rows

FEWEST_MODELS = 5
REPEATED = 1.01


def refuse(form: Form, data: Rows) -> None:
    """Raise ValueError where the target never changes, or tokens are repeated and the form knows of no repeats."""
    refuse_constant(form.target, data.columns[form.target])
    unique, tokens = data.columns.get("unique_tokens"), data.columns.get("tokens")
    if unique is None or tokens is None or "unique_tokens" in form.inputs or "tokens" not in form.inputs:
        return
    known = np.isfinite(unique) & (unique > 0)
    repeated = known & (tokens > REPEATED * np.where(known, unique, np.inf))
    if repeated.any():
        most = float((tokens[repeated] / unique[repeated]).max())
        raise ValueError(
            f"{int(repeated.sum())} of {len(data)} runs trained on more tokens than are unique (up to {most:.3g} "
            f"epochs), and {form.name} takes all tokens as new: use form='repeats', or leave these runs out"
        )


def refuse_constant(target: str, values: Array) -> None:
    """Raise ValueError where a target (n,) never changes."""
    if len(values) > 1 and float(np.ptp(values)) == 0.0:
        raise ValueError(f"every row has the same {target}, {values[0]:g}: no law follows; map another column")


def refuse_alone(cells: Index, values: Array, target: str) -> None:
    """Raise ValueError where no setting (n,) was run twice, or no repeats of one differ in the target (n,)."""
    unknown = "so that nothing says what seeds do; use cluster=auto, or repeat some settings with other seeds"
    if np.bincount(cells).max() < 2:
        raise ValueError(f"cluster=seeds: no setting was run twice, {unknown}")
    spread = np.full(int(cells.max()) + 1, -np.inf)
    least = -spread
    np.maximum.at(spread, cells, values)
    np.minimum.at(least, cells, values)
    if (spread <= least + ties.EQUAL * np.abs(least)).all():
        raise ValueError(f"cluster=seeds: all repeats of a setting have the same {target}, {unknown}")


def refuse_few(problem: Problem) -> None:
    """Raise ValueError where there are too few rows for the free constants, or none is free."""
    law, free, rows = problem.form, problem.free, problem.y.size
    if not free:
        raise ValueError(f"fix= and tie= hold every constant of {law.name} ({', '.join(law.names)}): leave one free")
    if rows < free + 1:
        raise ValueError(
            f"{numbers.counted(rows, 'row')} for {numbers.counted(free, 'free constant')} of {law.name}: it needs at "
            f"least {free + 1} rows; fix or tie constants, or add runs"
        )


def refuse_far(form: Form, data: Rows, at: Array) -> None:
    """Raise ValueError where an error or accuracy is extrapolated from fewer than five models."""
    if form.target != "error" or "loss" not in form.inputs or len(data) >= FEWEST_MODELS:
        return
    row = form.inputs.index("loss")
    low, high = data.columns["loss"].min(), data.columns["loss"].max()
    if (at[row] < low * (1 - 1e-9)).any() or (at[row] > high * (1 + 1e-9)).any():
        raise ValueError(
            f"the downstream law rests on {len(data)} models; outside their losses, {low:.4g} to {high:.4g}, it is "
            f"not extrapolated from fewer than {FEWEST_MODELS}: add models"
        )
