"""Power laws y = coefficient (C / reference)^exponent by least squares of the logs, and the lines of their draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.inference import resampling
from analysis.inputs.dataset import Array
from analysis.values.blocks import Interval, PowerLaw

Ends = tuple[Interval | None, Interval | None]
"""Intervals of a line's intercept and slope."""


def regression(reference: float, x: Array, y: Array, ends: Callable[[Any], Ends]) -> PowerLaw:
    """Return the power law of y (m,) = ln y over x = ln(C/reference); `ends` gives the line's intervals.

    `ends` is called with statsmodels' results.
    """
    import statsmodels.api as sm

    result = sm.OLS(y, sm.add_constant(x)).fit()
    level, slope = ends(result)
    df = len(y) - 2
    return PowerLaw(
        coefficient=float(np.exp(result.params[0])),
        exponent=float(result.params[1]),
        reference_flops=reference,
        coefficient_interval=exp_interval(level),
        exponent_interval=slope,
        bse=float(result.bse[1]) if df > 0 else None,
        points=len(y),
        df_resid=df,
    )


def students(confidence: float) -> Callable[[Any], Ends]:
    """Return Student's t intervals; none of two points."""

    def ends(result: Any) -> Ends:
        if result.df_resid <= 0:
            return None, None
        level, slope = ((float(low), float(high)) for low, high in result.conf_int(1.0 - confidence))
        return level, slope

    return ends


def power_law(reference: float, log_flops: Array, values: Array, draws: Array) -> PowerLaw:
    """Return the power law of `values` (m,) = ln y, with intervals from `draws` (R, m)."""
    x = log_flops - np.log(reference)

    def ends(result: Any) -> Ends:
        level, slope = (
            resampling.interval(drawn, float(value))
            for drawn, value in zip(_lines(x, draws), result.params, strict=True)
        )
        return level, slope

    return regression(reference, x, values, ends)


def exp_interval(interval: Interval | None) -> Interval | None:
    """Return the interval of exp(value) from that of the value."""
    return None if interval is None else (float(np.exp(interval[0])), float(np.exp(interval[1])))


def lines(flops: Array, reference: float, draws: Array) -> tuple[Array, Array]:
    """Return intercepts and slopes (R,) of ln y on ln(C/reference) for `draws` (R, m); NaN entries are left out."""
    return _lines(np.log(flops / reference), draws)


def _lines(x: Array, draws: Array) -> tuple[Array, Array]:
    there = np.isfinite(draws)
    y = np.where(there, draws, 0.0)
    count = there.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = (there * x).sum(axis=1) / count, y.sum(axis=1) / count
        dx = np.where(there, x - mean_x[:, None], 0.0)
        slope = (dx * y).sum(axis=1) / np.where(count >= 2, (dx * dx).sum(axis=1), np.nan)
    return np.asarray(mean_y - slope * mean_x), np.asarray(slope)
