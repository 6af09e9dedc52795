"""Fits of several forms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis import engine
from analysis.lawfit import LawFit

if TYPE_CHECKING:
    import pandas as pd


def compare(fits: Sequence[LawFit]) -> pd.DataFrame:
    """Return fits of the same rows as a table by name, the lowest AIC first.

    Columns: rank, aic, delta_aic, weight (Akaike's), bic, k (fitted constants), nobs, objective, error (mean absolute
    relative error of the rows of the largest fifth of the compute, or of the largest sizes without FLOPs, predicted
    from the others), warning (codes of the fit's findings). Raises ValueError where rows or targets differ.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> from analysis import fit_law
    >>> table = compare([fit_law(runs, form, loss="squared", resamples=0) for form in ("chinchilla", "kaplan")])
    >>> str(table.index[0]), float(table["delta_aic"].iloc[0])
    ('chinchilla', 0.0)
    """
    import pandas as pd

    if not fits:
        raise ValueError("compare needs at least one fit")
    first = fits[0]
    for fit in fits[1:]:
        if fit.nobs != first.nobs or not np.array_equal(fit.data.target, first.data.target):
            raise ValueError(
                f"{fit.form.name} was fitted to {fit.nobs} rows, {first.form.name} to {first.nobs} or to others: "
                "their AIC cannot be compared; fit all forms to the same rows"
            )
        if fit.problem.plain != first.problem.plain:
            raise ValueError(f"{fit.form.name} and {first.form.name} differ in whether residuals are logs")
    rows = [
        {
            "name": fit.form.name, "aic": fit.aic, "bic": fit.bic, "k": fit.free, "nobs": fit.nobs,
            "objective": fit.objective, "error": held_out_error(fit),
            "warning": " ".join(dict.fromkeys(check.code for check in fit.check() if check.level != "note")),
        }
        for fit in fits
    ]  # fmt: skip
    table = pd.DataFrame(rows).sort_values("aic", kind="stable").set_index("name")
    table.insert(0, "rank", np.arange(len(table)))
    gap = table["aic"] - table["aic"].min()
    table.insert(2, "delta_aic", gap)
    weight = np.exp(-0.5 * gap)
    table.insert(3, "weight", weight / weight.sum())
    return table


def held_out_error(fit: LawFit, share: float = 0.2) -> float:
    """Return the mean absolute relative error of the largest rows, predicted from the others; NaN with too few."""
    data = fit.data
    order = data.extra.get("flops")
    if order is None:
        order = np.prod(data.inputs, axis=0)
    cut = np.quantile(order, 1.0 - share)
    test = order >= cut * (1.0 - 1e-9)
    if not test.any() or (~test).sum() <= fit.free:
        return float("nan")
    names = {n: v for n, v in fit.constraints.items() if not isinstance(v, str)}
    ties = {n: v for n, v in fit.constraints.items() if isinstance(v, str)}
    train = data.take(~test)
    p = engine.problem(
        fit.form, list(train.inputs), train.target, fit.problem.loss, fix=names, tie=ties, plain=fit.problem.plain
    )
    point = engine.fit_point(p)
    x = np.log(data.inputs[:, test]) - p.centres[:, None]
    predicted = np.exp(fit.form.log_value(point.theta[None], x)[0])
    return float(np.abs(predicted / data.target[test] - 1.0).mean())
