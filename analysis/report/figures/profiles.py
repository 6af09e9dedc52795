"""Profiles: how much worse the law fits when one constant is held and all others are fitted anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.text import numbers
from analysis.values.study_result import Fit, ProfileCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYMBOLS = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eta": "η"}
WIDE = 5.0
"""An interval that spans a larger factor is shown on a log axis."""
TALL = 3.0
"""The deviance is shown up to this many times the level at which the interval ends."""


def prepare(curve: ProfileCurve) -> tuple[tuple[float, float], ...]:
    """Return the profile's points as (value, deviance), from the first beyond the shown height on either side."""
    pairs = zip(curve.values, curve.objective, strict=True)
    points = [(v, d) for v, d in pairs if math.isfinite(v) and math.isfinite(d)]
    inside = [i for i, (_, d) in enumerate(points) if d <= TALL * curve.cut]
    if not inside:
        return ()
    return tuple(points[max(0, inside[0] - 1) : inside[-1] + 2])


def figure(fit: Fit) -> Figure | None:
    """Return a panel for each constant, or None without profiles."""
    curves = [curve for curve in fit.profiles if len(prepare(curve)) >= 3]
    if not curves:
        return None
    panels = tuple(
        Panel(curve.name, f"Profile of {curve.name}", lambda ax, curve=curve: draw(ax, curve), height=3.1)  # type: ignore[misc]
        for curve in curves
    )
    open_ = [SYMBOLS.get(c.name, c.name) for c in curves if c.low is None or c.high is None]
    caption = (
        "A constant is known where its curve rises above the dashed line on both sides: the shaded values between are "
        f"its {numbers.percent(fit.confidence)} interval by likelihood."
    )
    if open_:
        caption += f" Open on a side: {', '.join(open_)}."
    if doubtful := [SYMBOLS.get(c.name, c.name) for c in curves if _doubtful(fit, c)]:
        caption += f" Closed here, but not identified by the resamples: {', '.join(doubtful)}; see the constants."
    return Figure("profiles", "Profiles: what the runs say about each constant", caption, panels, table(curves))


def draw(ax: Axes, curve: ProfileCurve) -> Axes:
    """Draw the deviance over a constant, the level of its interval and the interval."""
    points = prepare(curve)
    style.frame(ax, SYMBOLS.get(curve.name, curve.name), "deviance")
    x, y = [p[0] for p in points], [p[1] for p in points]
    low, high = _window(points, curve)
    if low > 0 and _wide(points, curve):
        style.log_axis(ax.xaxis, low, high, numbers.power if high / low > 1e3 or high > 1e4 or low < 1e-3 else _tick)
    else:
        ax.set_xlim(low, high)
        ax.locator_params(axis="x", nbins=5)
    ends = _ends(points, curve)
    ax.axvspan(
        max(ends[0], low), min(ends[1], high), color=style.BLUE, alpha=0.12, linewidth=0, zorder=0, label="interval"
    )
    ax.axhline(
        curve.cut, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1, label="limit of the interval"
    )
    ax.plot(x, y, color=style.BLUE, linewidth=1.8, marker="o", ms=3, zorder=3, label="profile")
    ax.set_ylim(-0.04 * TALL * curve.cut, TALL * curve.cut)
    style.key(ax)
    return ax


def table(curves: Sequence[ProfileCurve]) -> Table:
    """Return every profile's points as rows."""
    rows = [(c.name, v, d, c.cut) for c in curves for v, d in zip(c.values, c.objective, strict=True)]
    return Table(("constant", "value", "deviance", "cut"), tuple(rows))


def _doubtful(fit: Fit, curve: ProfileCurve) -> bool:
    """Return whether a constant's profile closes on both sides although the fit says that it is not identified."""
    found = (fit.fits.law or fit.fits.surface).identified.get(curve.name)
    return found is not None and not found.identified and curve.low is not None and curve.high is not None


def _ends(points: Sequence[tuple[float, float]], curve: ProfileCurve) -> tuple[float, float]:
    """Return the interval's ends, those of the profile where it is open."""
    return (
        curve.low if curve.low is not None else points[0][0],
        curve.high if curve.high is not None else points[-1][0],
    )


def _wide(points: Sequence[tuple[float, float]], curve: ProfileCurve) -> bool:
    """Return whether the interval spans so large a factor that it is read on a log axis."""
    low, high = _ends(points, curve)
    return low > 0 and high / low > WIDE


def _window(points: Sequence[tuple[float, float]], curve: ProfileCurve) -> tuple[float, float]:
    """Return the values to show: where the interval closes, as much again on either side, in logs where it is wide."""
    low, high = points[0][0], points[-1][0]
    ends = _ends(points, curve)
    if _wide(points, curve):
        room = ends[1] / ends[0]
        return max(low, ends[0] / room), min(high, ends[1] * room)
    room = ends[1] - ends[0]
    return max(low, ends[0] - room), min(high, ends[1] + room)


def _tick(value: object) -> str:
    return f"{value:g}"
