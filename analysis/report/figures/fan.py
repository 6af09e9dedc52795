"""The backtest's fan: errors of laws fitted up to rising cuts of compute, by how far they were extrapolated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.text import numbers
from analysis.text.colours import ramp
from analysis.values.blocks import Interval
from analysis.values.study_result import Cut, Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 6
LEAST_STEP = 1.1
"""Runs whose compute differs by less than this factor are of one step: runs of one budget differ by rounding alone."""


def figure(fit: Fit) -> Figure | None:
    """Return the fan and the drift of the exponent, or None with fewer than two cuts."""
    cuts = fit.rolling
    if len(cuts) < 2:
        return None
    panels = [
        Panel("fan", "Errors of forecasts against the factor of extrapolation", lambda ax: draw(ax, cuts), height=3.9)
    ]
    known = [cut for cut in cuts if cut.a is not None]
    if len(known) > 1:
        whole = fit.fits.surface.intervals.get("a")
        panels.append(Panel("drift", "The exponent a against the cut", lambda ax: drift(ax, known, whole), height=3.9))
    far, worst = max((point for cut in cuts for point in running_means(cut)), key=lambda point: abs(point[1]))
    caption = (
        f"Each colour is a law fitted to the runs up to a cut of compute; it then predicts all runs above it. Mean "
        f"errors (lines) reach {numbers.signed(worst, 1)}, at {numbers.factor(far)} the compute of the fit"
    )
    values = [cut.a for cut in known if cut.a is not None]
    if len(values) > 1:
        low, high = numbers.number(min(values)), numbers.number(max(values))
        caption += f"; the exponent a lies between {low} and {high} over the cuts"
    return Figure("fan", "Backtest fan: how errors grow with extrapolation", caption + ".", tuple(panels), table(cuts))


def draw(ax: Axes, cuts: Sequence[Cut]) -> Axes:
    """Draw each cut's errors above it: runs as faint dots, their running mean as a line."""
    style.frame(ax, "compute / largest compute of the fit", "predicted / observed − 1 [%]")
    factors = [c / cut.flops for cut in cuts for c, _ in cut.runs]
    style.log_axis(ax.xaxis, 1.0, max(2.0, max(factors) * 1.1), numbers.factor)
    ax.axhline(0, color=style.INK, linewidth=1, zorder=1)
    errors = sorted(100 * e for cut in cuts for _, e in cut.runs)
    for cut, colour in zip(cuts, ramp(len(cuts)), strict=True):
        x, y = [c / cut.flops for c, _ in cut.runs], [100 * e for _, e in cut.runs]
        means = [(factor, 100 * error) for factor, error in running_means(cut)]
        ax.plot(x, y, "o", ms=3, mfc=colour, mec="none", alpha=0.45, zorder=2)
        ax.plot(*zip(*means, strict=True), color=colour, linewidth=1.6, marker="o", ms=3.5, zorder=3,
                label=numbers.power(cut.flops))  # fmt: skip
    low, high = errors[len(errors) // 50], errors[-1 - len(errors) // 50]
    reach = max(abs(low), abs(high), 0.1) * 1.25
    ax.set_ylim(-reach, reach)
    style.key(ax, columns=4, title="fitted up to [FLOPs]")
    return ax


def drift(ax: Axes, cuts: Sequence[Cut], whole: Interval | None) -> Axes:
    """Draw the exponent of N* by cut; the band is the interval of the fit on all runs."""
    style.frame(ax, "fitted up to [FLOPs]", "exponent a of N*")
    flops = [cut.flops for cut in cuts]
    style.log_axis(ax.xaxis, *style.padded(flops, 0.1), numbers.power)
    values = [cut.a for cut in cuts if cut.a is not None]
    if whole is not None:
        ax.axhspan(*whole, color=style.BLUE, alpha=0.14, linewidth=0, zorder=0, label="interval of the fit on all runs")
    ax.plot(flops, values, color=style.MUTED, linewidth=1, zorder=2, label="fitted up to a cut")
    for cut, colour in zip(cuts, ramp(len(cuts)), strict=True):
        assert cut.a is not None
        ax.plot(cut.flops, cut.a, "o", ms=6, mfc=colour, mec=style.PAPER, zorder=3)
    ends = [*values, *(whole or ())]
    room = max(max(ends) - min(ends), 0.02) * 0.2
    ax.set_ylim(min(ends) - room, max(ends) + room)
    style.key(ax)
    return ax


def table(cuts: Sequence[Cut]) -> Table:
    """Return every held-out run of every cut as a row."""
    columns = ("fitted_up_to_flops", "rows", "a", "flops", "relative_error")
    return Table(columns, tuple((c.flops, c.rows, c.a, flops, e) for c in cuts for flops, e in c.runs))


def running_means(cut: Cut) -> list[tuple[float, float]]:
    """Return how far beyond the fit a group of held-out runs is [factor], and its mean relative error, rising."""
    return _binned([c / cut.flops for c, _ in cut.runs], [error for _, error in cut.runs])


def _binned(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """Return means over equal steps of ln x, of steps that hold a point."""
    low, high = math.log(min(x)), math.log(max(x))
    width = max((high - low) / BINS, math.log(LEAST_STEP))
    groups: dict[int, list[int]] = {}
    for i, value in enumerate(x):
        groups.setdefault(min(BINS - 1, int((math.log(value) - low) / width)), []).append(i)
    return [
        (math.exp(sum(math.log(x[i]) for i in group) / len(group)), sum(y[i] for i in group) / len(group))
        for _, group in sorted(groups.items())
    ]
