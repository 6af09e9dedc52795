"""Plots of one fitted law (`analysis.inference.law_result.LawFit`): every function takes and returns axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.report.figures import style
from analysis.report.figures.profiles import SYMBOLS
from analysis.text import numbers
from train.spec import calls

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from analysis.inference.law_result import LawFit

LABELS = {"params": "parameters N", "tokens": "training tokens D", "flops": "compute C [FLOPs]", "loss": "loss"}
MANY = 30.0
"""An axis whose values span more than this factor is logarithmic."""


def new() -> Axes:
    """Return empty axes of the report's size, on a figure of their own (`ax.figure.savefig(path)`)."""
    from analysis.report.figures.canvas import new_axes

    return new_axes(3.6)


def residuals(fit: LawFit, against: str = "params", ax: Axes | None = None) -> Axes:
    """Draw predicted / observed - 1 [%] against an input, the target or another column of the runs."""
    x = _column(fit, against)
    error = (
        100 * np.expm1(-np.asarray(fit.resid)) if not fit.problem.plain else 100 * (fit.fittedvalues / _target(fit) - 1)
    )
    label = LABELS.get(against, against)
    if against == "params":
        label = numbers.labelled(label, str(fit.kinds.get("params", "")))
    ax = style.frame(ax or new(), label, "predicted / observed − 1 [%]")
    _scale(ax.xaxis, x)
    ax.axhline(0, color=style.INK, linewidth=1, zorder=1)
    ax.plot(x, error, "o", ms=5, mfc=style.BLUE, mec=style.PAPER, mew=0.6, alpha=0.9, zorder=3)
    reach = max(float(np.abs(error).max()), 0.01) * 1.12
    ax.set_ylim(-reach, reach)
    return ax


def observed(fit: LawFit, ax: Axes | None = None) -> Axes:
    """Draw what the law says of every run against what was seen, with the line of equality."""
    seen, said = _target(fit), np.asarray(fit.fittedvalues)
    ax = style.frame(ax or new(), f"observed {fit.form.target}", f"predicted {fit.form.target}")
    both = np.concatenate([seen, said])
    if float(both.max() / both.min()) > MANY:
        for axis in (ax.xaxis, ax.yaxis):
            _scale(axis, both)
    ends = [float(both.min()), float(both.max())]
    ax.plot(ends, ends, color=style.MUTED, linewidth=1, zorder=1)
    ax.plot(seen, said, "o", ms=5, mfc=style.BLUE, mec=style.PAPER, mew=0.6, alpha=0.9, zorder=3)
    return ax


def profile(fit: LawFit, name: str, ax: Axes | None = None) -> Axes:
    """Draw the profile of a constant: deviance, the level that ends the interval, and the interval."""
    from analysis.report.figures import profiles
    from analysis.values.study_result import ProfileCurve

    found = fit.profile(name)
    curve = ProfileCurve(
        name, tuple(map(float, found.values)), tuple(map(float, found.deviance)), float(found.cut),
        float(found.low) if found.closed_low else None, float(found.high) if found.closed_high else None,
    )  # fmt: skip
    return profiles.draw(ax or new(), curve)


def draws(fit: LawFit, x: str, y: str, ax: Axes | None = None) -> Axes:
    """Draw two constants of every resample against each other; the star is the fit. ValueError without resamples."""
    for which, name in (("x", x), ("y", y)):
        if name not in fit.names:
            raise ValueError(calls.none_such(which, name, fit.form.name, fit.names))
    table = fit.draws
    if not len(table):
        raise ValueError("the fit has no resamples to draw: fit with resamples=1000")
    ax = style.frame(ax or new(), SYMBOLS.get(x, x), SYMBOLS.get(y, y))
    point = {**dict(fit.params), **dict(fit.derived)}
    for axis, name in ((ax.xaxis, x), (ax.yaxis, y)):
        values = table[name].to_numpy(dtype=np.float64)
        low, high = np.nanquantile(values[np.isfinite(values)], [0.01, 0.99])
        _scale(axis, np.array([low, high, float(point[name])]))
    ax.plot(table[x], table[y], "o", ms=3, mfc=style.BLUE, mec="none", alpha=0.35, zorder=3)
    ax.plot(point[x], point[y], "*", ms=13, mfc=style.ORANGE, mec=style.PAPER, mew=1, zorder=5)
    return ax


def _scale(axis: object, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    """Make an axis logarithmic where its values span much, linear with room at both ends where not."""
    good = values[np.isfinite(values)]
    low, high = float(good.min()), float(good.max())
    if low > 0 and high / low > MANY:
        style.log_axis(
            axis, *style.padded([low, high]), lambda v: numbers.count(v, 2) if _near(v) else numbers.power(v)
        )
        return
    room = max((high - low) * 0.06, abs(high) * 1e-6, 1e-12)
    limits = axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim  # type: ignore[attr-defined]
    limits(low - room, high + room)


def _near(value: object) -> bool:
    number = numbers.finite(value)
    return number is not None and 1e-2 <= abs(number) < 1e15


def _target(fit: LawFit) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(fit.observed, dtype=np.float64)


def _column(fit: LawFit, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if name not in fit.data.columns:
        held = ", ".join(dict.fromkeys((*fit.form.inputs, fit.form.target, *fit.data.columns)))
        raise ValueError(f"against={name!r}: the runs of this fit have no such column; they have {held}")
    return np.asarray(fit.data.columns[name], dtype=np.float64)
