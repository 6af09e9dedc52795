"""Fits of several forms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import fit_problem, multistart
from analysis.estimation.observations import SIZES, inputs
from analysis.inference.akaike import behind, weights
from analysis.inference.law_result import LawFit

if TYPE_CHECKING:
    import pandas as pd

    from analysis.values.blocks import Check


def compare(fits: Sequence[LawFit]) -> pd.DataFrame:
    """Return fits of the same rows as a table by name, the lowest AICc first.

    Columns: rank, aicc (AIC for small samples: laws rank by it), delta_aicc, weight (Akaike's, of AICc), aic, bic, k
    (fitted constants), nobs, objective, error (mean absolute relative error of the largest fifth of the runs, by FLOPs
    or what else says their size, predicted from the others), warning (codes of the fit's findings). `attrs["findings"]`
    has one finding for each of these codes, from the first fit that has it. Raises ValueError where rows or targets
    differ, or where some residuals are logs and others are not.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> from analysis import fit_law
    >>> table = compare([fit_law(runs, form, loss="squared", resamples=0) for form in ("chinchilla", "kaplan")])
    >>> str(table.index[0]), float(table["delta_aicc"].iloc[0])
    ('chinchilla', 0.0)
    """
    import pandas as pd

    if not isinstance(fits, Sequence) or not fits or not all(isinstance(fit, LawFit) for fit in fits):
        raise ValueError(
            "compare needs a list of fits, such as [fit_law(runs, 'chinchilla'), fit_law(runs, 'farseer')]"
        )
    first = fits[0]
    for fit in fits[1:]:
        if fit.nobs != first.nobs or not np.array_equal(fit.observed, first.observed):
            raise ValueError(
                f"{fit.form.name} was fitted to {fit.nobs} rows, {first.form.name} to {first.nobs} or to others: "
                "their criteria cannot be compared; fit all forms to the same rows"
            )
        if fit.problem.plain != first.problem.plain:
            raise ValueError(f"{fit.form.name} and {first.form.name} differ in whether residuals are logs")
    findings = [[check for check in fit.check() if check.level != "note"] for fit in fits]
    rows = [
        {
            "name": fit.form.name, "aicc": fit.aicc, "aic": fit.aic, "bic": fit.bic, "k": fit.free, "nobs": fit.nobs,
            "objective": fit.objective, "error": held_out_error(fit),
            "warning": " ".join(dict.fromkeys(check.code for check in found)),
        }
        for fit, found in zip(fits, findings, strict=True)
    ]  # fmt: skip
    table = pd.DataFrame(rows).sort_values(["aicc", "aic"], kind="stable").set_index("name")
    table.insert(0, "rank", np.arange(len(table)))
    criteria = table["aicc"].to_numpy()
    # Without one finite AICc the runs are too few to prefer a law: no law is then as good as another, either.
    known = 1.0 if np.isfinite(criteria).any() else np.nan
    table.insert(2, "delta_aicc", known * behind(criteria))
    table.insert(3, "weight", known * weights(criteria))
    first_of: dict[str, Check] = {}
    for check in (check for found in findings for check in found):
        first_of.setdefault(check.code, check)
    table.attrs["findings"] = first_of
    return table


def size_of(fit: LawFit) -> NDArray[np.float64]:
    """Return how large each row's run is (n,): its FLOPs, else N D, else what its law reads of them.

    A law of the loss alone, such as the downstream law, has its largest models where the loss is lowest.
    """
    known, names = fit.data.columns, fit.form.inputs
    if "flops" in known:
        return known["flops"]
    params = next((known[name] for name in SIZES if name in known), None)
    factors = [values for values in (params, known.get("tokens")) if values is not None]
    if factors:
        return np.asarray(np.prod(factors, axis=0))
    if "loss" in names:
        return np.asarray(1.0 / known["loss"])
    return np.asarray(np.prod(inputs(fit.data, fit.form), axis=0))


def held_out_error(fit: LawFit, share: float = 0.2) -> float:
    """Return the mean absolute relative error of the largest rows, predicted from the others; NaN with too few."""
    order = size_of(fit)
    cut = np.quantile(order, 1.0 - share)
    test = order >= cut * (1.0 - 1e-9)
    if not test.any() or (~test).sum() <= fit.free:
        return float("nan")
    names = {n: v for n, v in fit.constraints.items() if not isinstance(v, str)}
    ties = {n: v for n, v in fit.constraints.items() if isinstance(v, str)}
    columns, target = inputs(fit.data, fit.form), fit.observed
    p = fit_problem.problem(
        fit.form, list(columns[:, ~test]), target[~test], fit.problem.loss, fix=names, tie=ties, plain=fit.problem.plain
    )
    point = multistart.fit_point(p)
    x = np.log(columns[:, test]) - p.centres[:, None]
    predicted = np.exp(fit.form.log_value(point.theta[None], x)[0])
    return float(np.abs(predicted / target[test] - 1.0).mean())
