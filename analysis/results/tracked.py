"""The small files beside `fit.json` that are tracked and compared: `metrics.json` and `points.csv` (docs/dvc.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from analysis.text import numbers
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    import pandas as pd

DIGITS = 6
"""Significant digits: other machines' last bits are no change."""
POINTS = ("key", "params", "tokens", "flops", "loss")


def metrics(fit: Fit) -> dict[str, float | int]:
    """Return about ten numbers that say what a fit found, in the order in which a narrow table shows them.

    a: exponent of N* along the recommended law. loss [the fit's unit], N [parameters], D [tokens]: the recommended run.
    backtest: signed relative error. runs: that the fit used. The rest are the law's constants. What there is none of,
    or what the data do not identify, is left out.
    """
    plan, test = fit.recommendation, fit.backtest
    found: dict[str, float | None] = {}
    if plan is not None:
        growth = plan.growth.get("params")
        found |= {"a": growth.exponent if growth else None, "loss": plan.loss, "N": plan.params, "D": plan.tokens}
    found["backtest"] = test.relative_error if test is not None else None
    identified = {name for name, said in fit.identified.items() if said.identified}
    found |= {name: value for name, value in fit.params.items() if name in identified or name not in fit.identified}
    kept = {name: value for name, value in found.items() if numbers.finite(value) is not None}
    return {**{name: float(f"{value:.{DIGITS}g}") for name, value in kept.items()}, "runs": fit.runs.used}


def metrics_text(fit: Fit) -> str:
    """Return `metrics.json`."""
    return json.dumps(metrics(fit), indent=1, allow_nan=False) + "\n"


def points(fit: Fit, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that the fit used, by rising budget [FLOPs] and size, each with its budget as planned.

    A run that names no budget has that of the isoFLOP group in which it was found, else its own FLOPs, to two digits.
    """
    group = {key: valley.flops_budget for valley in fit.fits.valleys.valleys for key in valley.keys}
    rows = frame[frame["used"]].dropna(subset=["params", "loss"])
    labels = rows["flops_budget"].fillna(rows["key"].map(group)).fillna(rows["flops"])
    found = rows[list(POINTS)].assign(budget=[float(f"{label:.2g}") for label in labels])
    return found.sort_values(["budget", "params", "key"])[["budget", *POINTS]]
