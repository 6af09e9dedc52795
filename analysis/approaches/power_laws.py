"""Power laws y = coefficient (C / reference)^exponent by least squares of the logs, and the lines of their draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.inference import resampling
from analysis.inputs.dataset import Array
from analysis.values.blocks import Interval, PowerLaw

Ends = tuple[Interval | None, Interval | None]
"""Intervals of a line's intercept and slope."""


@dataclass(frozen=True)
class Line:
    """A line by ordinary least squares: intercept and slope, their standard errors, residual degrees of freedom."""

    params: tuple[float, float]
    bse: tuple[float, float]
    df_resid: int

    def conf_int(self, confidence: float) -> Ends:
        """Return Student's t intervals of intercept and slope; none of two points."""
        if self.df_resid <= 0:
            return None, None
        from scipy.special import stdtrit

        reach = float(stdtrit(self.df_resid, 0.5 + 0.5 * confidence))
        level, slope = (
            (value - reach * error, value + reach * error) for value, error in zip(self.params, self.bse, strict=True)
        )
        return level, slope


def line(x: Array, y: Array) -> Line:
    """Return the line through `y` (m,) at `x` (m,); standard errors are NaN with no residual degree of freedom."""
    level, slope = (float(values[0]) for values in _lines(x, y[None]))
    df, dx = len(y) - 2, x - x.mean()
    square = float(((y - level - slope * x) ** 2).sum()) / df if df > 0 else math.nan
    spread = float(dx @ dx)
    return Line(
        (level, slope), (math.sqrt(square * (1 / len(y) + x.mean() ** 2 / spread)), math.sqrt(square / spread)), df
    )


def regression(reference: float, x: Array, y: Array, ends: Callable[[Line], Ends]) -> PowerLaw:
    """Return the power law of y (m,) = ln y over x = ln(C/reference); `ends` gives the line's intervals."""
    found = line(x, y)
    level, slope = ends(found)
    return PowerLaw(
        coefficient=float(np.exp(found.params[0])),
        exponent=found.params[1],
        reference_flops=reference,
        coefficient_interval=exp_interval(level),
        exponent_interval=slope,
        bse=found.bse[1] if found.df_resid > 0 else None,
        points=len(y),
        df_resid=found.df_resid,
    )


def power_law(reference: float, log_flops: Array, values: Array, draws: Array) -> PowerLaw:
    """Return the power law of `values` (m,) = ln y, with intervals from `draws` (R, m)."""
    x = log_flops - np.log(reference)

    def ends(found: Line) -> Ends:
        level, slope = (
            resampling.interval(drawn, value) for drawn, value in zip(_lines(x, draws), found.params, strict=True)
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
