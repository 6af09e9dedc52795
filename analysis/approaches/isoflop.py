"""Approach 2 by three interpolations: the lowest loss of each budget by parabola, Akima spline or a local surface.

:mod:`analysis.approaches.valleys` is what a study's report rests on; this module is for comparing methods, for their
spread is often larger than the interval of any one of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.approaches import power_laws
from analysis.estimation import observations, ties
from analysis.inputs.dataset import Array
from analysis.text import numbers
from analysis.values.blocks import PowerLaw
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["METHODS", "exponents", "ols", "optima"]

METHODS = ("parabola", "akima", "surface")
PER_GAP = 25
FLAT = 1e-10
"""A valley less deep than this in ln loss has the sign of its curvature from rounding."""


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]


@dataclass(frozen=True)
class _Budget:
    """The runs of one budget, by rising size: ln N, ln D, ln loss, exact FLOPs."""

    flops: float
    params: Array
    tokens: Array
    loss: Array


@calls.answered(method=calls.one_of(*METHODS), nearest=calls.whole(3))
def optima(runs: Any, method: str = "parabola", nearest: int | None = None) -> pd.DataFrame:
    """Return the best size of each budget: flops, params_opt, tokens_opt, loss_opt, status, reason, points.

    `runs` has params, tokens, flops, loss and, optionally, flops_budget (the nominal budget); runs belong to one budget
    where their exact FLOPs agree to 1 %. "parabola" is ln loss over ln N, on the `nearest` sizes to the lowest where
    given; "akima" the spline through all of them (repeats of a size: their mean); "surface" a quadratic in ln N and
    ln C through a budget and its neighbours. Where `status` is not "minimum" (edge, inverted, flat, too_few) the
    optimum is NaN, with the reason.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> set(optima(runs)["status"])
    {'minimum'}
    """
    import pandas as pd

    budgets = _budgets(runs)
    rows = []
    for i, budget in enumerate(budgets):
        found = _optimum(budgets, i, method, nearest)
        size, tokens, loss, status, reason = found
        rows.append(
            {
                "flops": budget.flops, "params_opt": float(np.exp(size)), "tokens_opt": float(np.exp(tokens)),
                "loss_opt": float(np.exp(loss)), "status": status, "reason": reason, "points": len(budget.params),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


@calls.answered(y=calls.text, confidence=calls.share)
def exponents(found: Any, y: str = "params_opt", confidence: float = 0.95) -> PowerLaw:
    """Return y = coefficient (C / reference_flops)^exponent through optima, by least squares of the logs.

    `found` has the columns flops and `y`; rows without an optimum are left out. Fit on exact budgets, not on rounded
    labels. The exponents of N and D come from separate fits and need not add to 1. Intervals are Student's t.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> law = exponents(optima(runs))
    >>> 0.3 < law.exponent < 0.7, law.points
    (True, 5)
    """
    reference, x, logs = _points(found, y)
    return power_laws.regression(reference, x, logs, lambda line: line.conf_int(confidence))


@calls.answered(y=calls.text)
def ols(found: Any, y: str = "params_opt") -> Any:
    """Return the line of `exponents` as statsmodels' results: summary(), get_influence(), outlier_test() and others.

    Needs statsmodels, which nothing else in this package does.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> found = optima(frame.used(frame.from_csv(Path("docs/example-runs.csv"))))
    >>> bool(abs(ols(found).params[1] - exponents(found).exponent) < 1e-12)
    True
    """
    import statsmodels.api as sm

    _, x, logs = _points(found, y)
    return sm.OLS(logs, sm.add_constant(x)).fit()


def _points(found: Any, y: str) -> tuple[float, Array, Array]:
    """Return the reference FLOPs of the optima, ln(C/reference), and ln y."""
    found = observations.table(found)
    flops, values = observations.column(found, "flops"), observations.column(found, y)
    good = np.isfinite(values) & (values > 0) & np.isfinite(flops)
    if (budgets := len(np.unique(flops[good]))) < 2:
        what = {"params_opt": "a best size", "tokens_opt": "best tokens"}.get(y, y)
        raise ValueError(
            f"{numbers.counted(budgets, 'budget')} with {what} inside the sizes swept; a power law needs two: "
            "widen the sizes of each budget"
        )
    reference = float(np.exp(np.log(flops[good]).mean()))
    return reference, np.log(flops[good] / reference), np.log(values[good])


def _budgets(runs: Any) -> list[_Budget]:
    table = observations.rows_of(runs)
    out = []
    for number in range(len(table.labels)):
        rows = np.flatnonzero(table.budget == number)
        # Repeats of a size lie in the order of their values: a file's order changes no number.
        rows = rows[np.lexsort((table.tokens[rows], table.loss[rows], table.params[rows]))]
        exact = float(np.exp(np.log(table.flops[rows]).mean()))
        params, tokens, loss = (np.log(values[rows]) for values in (table.params, table.tokens, table.loss))
        out.append(_Budget(exact, params, tokens, loss))
    return sorted(out, key=lambda b: b.flops)


def _optimum(
    budgets: list[_Budget], number: int, method: str, nearest: int | None
) -> tuple[float, float, float, str, str]:
    """Return ln N*, ln D*, ln loss, status and reason."""
    budget = budgets[number]
    sizes, which, count = np.unique(budget.params, return_inverse=True, return_counts=True)
    level_tokens = np.bincount(which, budget.tokens) / count
    lost = (np.nan, np.nan, np.nan)
    if len(sizes) < 3:
        return (*lost, "too_few", f"{len(sizes)} sizes: at least three are needed")
    if method == "akima":
        return _akima(sizes, level_tokens, np.bincount(which, budget.loss) / count)
    low, high = float(sizes[0]), float(sizes[-1])
    if method == "surface" and len(budgets) >= 2:
        slope, curve, level = _local(budgets, number)
    else:
        rows = np.arange(len(budget.params))
        if nearest is not None:
            best = budget.params[ties.lowest(budget.loss, budget.params)]
            rows = np.sort(np.argsort(np.abs(budget.params - best), kind="stable")[:nearest])
        curve, slope, level = (
            float(c) for c in np.polyfit(budget.params[rows] - budget.params.mean(), budget.loss[rows], 2)
        )
    if abs(curve) * (0.5 * (high - low)) ** 2 <= FLAT:
        return (*lost, "flat", "the loss does not depend on the size here")
    if curve <= 0:
        return (*lost, "inverted", "the parabola opens downwards")
    at = -slope / (2 * curve)
    size = at + float(budget.params.mean())
    if not low < size < high:
        place = numbers.count(float(np.exp(size)))
        return (*lost, "edge", f"the minimum lies outside the sizes, at {place} parameters")
    tokens = float(np.interp(size, sizes, level_tokens))
    return size, tokens, level + slope * at + curve * at * at, "minimum", ""


def _akima(sizes: Array, tokens: Array, loss: Array) -> tuple[float, float, float, str, str]:
    """Return what `_optimum` does, by the spline through ln loss (k,) at these sizes: the mean of repeats at each."""
    from scipy.interpolate import Akima1DInterpolator

    grid = np.unique(np.concatenate([np.linspace(a, b, PER_GAP) for a, b in itertools.pairwise(sizes)]))
    curve = Akima1DInterpolator(sizes, loss)(grid)
    best = ties.lowest(curve)
    if best in (0, len(grid) - 1):
        side = "smallest" if best == 0 else "largest"
        return np.nan, np.nan, np.nan, "edge", f"the lowest loss is at the {side} size"
    return float(grid[best]), float(np.interp(grid[best], sizes, tokens)), float(curve[best]), "minimum", ""


def _local(budgets: list[_Budget], number: int) -> tuple[float, float, float]:
    """Return slope, curvature and level in ln N, about the budget's mean, of a quadratic in ln N and ln C."""
    near = budgets[max(0, number - 1) : number + 2]
    middle = float(budgets[number].params.mean())
    x = np.concatenate([b.params for b in near]) - middle
    z = np.concatenate([np.full(len(b.params), np.log(b.flops / budgets[number].flops)) for b in near])
    columns = [np.ones_like(x), x, x * x, z, x * z] + ([z * z] if len(near) == 3 else [])
    found = np.linalg.lstsq(np.stack(columns, axis=1), np.concatenate([b.loss for b in near]), rcond=None)[0]
    return float(found[1]), float(found[2]), float(found[0])
