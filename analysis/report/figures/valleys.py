"""isoFLOP valleys: loss against parameters, a parabola for each budget, and their minima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.report.figures.data import MOST_DOTS, Row, budget_label, dots
from analysis.text import numbers
from analysis.values.blocks import Interval, Valley
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 8
"""Budgets that are named one by one; with more, valleys left out are counted instead."""

STATUS = {
    "minimum": "minimum inside the sizes swept",
    "edge": "no minimum inside",
    "inverted": "curves downward",
    "flat": "too flat",
    "negative": "falls below zero",
    "too_few": "too few runs",
}


@dataclass(frozen=True)
class Curve:
    """A valley ready to draw: its runs, its parabola sampled, its minimum; `kept` says that fits use it."""

    budget: float
    label: str
    status: str
    kept: bool
    points: tuple[tuple[float, float], ...]
    parabola: tuple[tuple[float, float], ...]
    minimum: tuple[float, float] | None
    interval: Interval | None
    loss_interval: Interval | None


def prepare(valleys: Sequence[Valley], rows: Sequence[Row], samples: int = 60) -> tuple[Curve, ...]:
    """Return the valleys as curves, by rising budget; runs without a loss are left out."""
    by_key = {row.key: row for row in rows}
    budgets = [v.flops_budget for v in valleys]
    return tuple(_curve(v, by_key, budgets, samples) for v in sorted(valleys, key=lambda v: v.flops_budget))


def figure(fit: Fit, rows: Sequence[Row]) -> Figure | None:
    """Return the figure of all valleys, or None where there is no run to show."""
    curves = prepare(fit.fits.valleys.valleys, rows)
    if not any(curve.points for curve in curves):
        return None
    kept = sum(curve.kept for curve in curves)
    joined = ", and the dashed line joins them" if kept > 1 else ""
    caption = (
        f"Each colour is one compute budget: {kept} of {len(curves)} valleys have their lowest point inside the "
        f"sizes swept (diamonds{', with intervals' if any(c.interval for c in curves) else ''}){joined}."
        if kept
        else "No budget has a minimum inside the sizes swept, so these runs alone cannot say which size is best."
    )
    if kept < len(curves):
        caption += " Grey valleys have none, and approach 2 leaves them out."
    if (runs := sum(len(curve.points) for curve in curves)) > MOST_DOTS:
        caption += f" Of {runs:,} runs about {MOST_DOTS:,} are drawn."
    panel = Panel(
        "valleys",
        f"Loss against parameters for {len(curves)} compute budgets with fitted parabolas",
        lambda ax: draw(ax, curves, fit.kinds.params, fit.kinds.loss),
        height=4.2,
    )
    return Figure("valleys", "Valleys: which size is best for each budget", caption, (panel,), table(curves))


def draw(ax: Axes, curves: Sequence[Curve], params_kind: str, loss_unit: str) -> Axes:
    """Draw valleys on the axes: points, parabolas, minima with intervals, a label at the end of each."""
    style.frame(ax, numbers.labelled("parameters N", params_kind), f"validation loss [{loss_unit}]")
    drawn = [curve for curve in curves if curve.points]
    every = [x for c in drawn for x, _ in c.points + c.parabola]
    low, high = style.padded(every, 0.05)
    room = 0.2 if len(drawn) <= MOST_LABELS else 0.3
    style.log_axis(ax.xaxis, low, high * (high / low) ** room, style.parameters)
    ax.set_ylim(*_loss_limits(drawn))
    colours = [c if curve.kept else style.MUTED for c, curve in zip(style.ramp(len(drawn)), drawn, strict=True)]
    faint = len(drawn) > MOST_LABELS
    for curve, colour in zip(drawn, colours, strict=True):
        _draw_curve(ax, curve, colour, 0.35 if faint and not curve.kept else 1.0, max(MOST_DOTS // len(drawn), 1))
    minima = [c.minimum for c in drawn if c.minimum is not None]
    if len(minima) > 1:
        ax.plot(*zip(*minima, strict=True), color=style.INK, linestyle=(0, (4, 3)), linewidth=1, zorder=3)
    _label(ax, drawn, colours)
    return ax


def table(curves: Sequence[Curve]) -> Table:
    """Return points, parabola samples and minima as rows."""
    rows: list[tuple[object, ...]] = []
    for c in curves:
        rows += [(c.budget, c.status, "run", n, loss, None, None) for n, loss in c.points]
        rows += [(c.budget, c.status, "parabola", n, loss, None, None) for n, loss in c.parabola]
        if c.minimum is not None:
            rows.append((c.budget, c.status, "minimum", *c.minimum, *(c.interval or (None, None))))
    return Table(("budget_flops", "status", "what", "params", "loss", "params_low", "params_high"), tuple(rows))


def _curve(valley: Valley, by_key: dict[str, Row], budgets: Sequence[float], samples: int) -> Curve:
    runs = sorted((by_key[k].params, by_key[k].loss) for k in valley.keys if k in by_key)
    minimum = None
    if valley.status == "minimum" and valley.params_opt is not None and valley.loss_opt is not None:
        minimum = (valley.params_opt, valley.loss_opt)
    return Curve(
        budget=valley.flops_budget,
        label=budget_label(valley.flops_budget, budgets),
        status=valley.status,
        kept=minimum is not None,
        points=tuple((n, loss) for n, loss in runs if n > 0 and math.isfinite(loss)),
        parabola=_sample(valley, samples),
        minimum=minimum,
        interval=valley.params_interval if minimum else None,
        loss_interval=valley.loss_interval if minimum else None,
    )


def _sample(valley: Valley, samples: int) -> tuple[tuple[float, float], ...]:
    if len(valley.coefficients) != 3:
        return ()
    low, high = (math.log(n) for n in valley.params_range)
    c0, c1, c2 = valley.coefficients
    places = [low + (high - low) * i / (samples - 1) for i in range(samples)]
    return tuple((math.exp(p), c0 + c1 * (p - valley.center) + c2 * (p - valley.center) ** 2) for p in places)


def _loss_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    losses = [loss for c in curves for _, loss in c.points + c.parabola]
    low, high = min(losses), max(losses)
    room = max((high - low) * 0.06, 1e-3)
    return low - room, high + room


def _draw_curve(ax: Axes, curve: Curve, colour: str, alpha: float, most: int) -> None:
    """Draw a valley, at most so many of its runs as dots."""
    shown = [curve.points[i] for i in dots(len(curve.points), most)]
    fill = colour if curve.kept else "none"
    ax.plot(
        *zip(*shown, strict=True),
        "o",
        ms=4.5,
        mfc=fill,
        mec=colour,
        mew=1,
        label=curve.label,
        alpha=alpha,
        zorder=4,
    )
    if curve.parabola:
        dashes = "-" if curve.kept else ":"
        ax.plot(*zip(*curve.parabola, strict=True), dashes, color=colour, linewidth=1.5, alpha=alpha, zorder=2)
    if curve.minimum is None:
        return
    n, loss = curve.minimum
    across = None if curve.interval is None else _arms(n, curve.interval)
    up = None if curve.loss_interval is None else _arms(loss, curve.loss_interval)
    ax.errorbar(n, loss, yerr=up, xerr=across, fmt="none", ecolor=style.INK, elinewidth=1.3, capsize=2.5, zorder=5)
    ax.plot(n, loss, "D", ms=7, mfc=colour, mec=style.PAPER, mew=1.2, zorder=6)


def _arms(value: float, bounds: Interval) -> list[list[float]]:
    return [[max(0.0, value - bounds[0])], [max(0.0, bounds[1] - value)]]


def _label(ax: Axes, curves: Sequence[Curve], colours: Sequence[str]) -> None:
    """Write budgets at the right ends of their valleys, moved apart where valleys come close.

    With many budgets only valleys that count are named, and not all of those, in a column at the right edge with a
    line to each; the rest is counted.
    """
    low, high = ax.get_ylim()
    many = len(curves) > MOST_LABELS
    named = [i for i, c in enumerate(curves) if c.kept or not many]
    named = [named[i] for i in sorted(style.thinned(len(named), MOST_LABELS))]
    ends = [max(curves[i].parabola or curves[i].points) for i in named]
    places = style.spread([loss for _, loss in ends], (high - low) * 0.06)
    down = max([0.0] + [place - high for place in places])
    edge = ax.get_xlim()[1]
    for i, (n, loss), place in zip(named, ends, places, strict=True):
        kept = curves[i].kept
        ax.annotate(
            curves[i].label + ("" if kept else f"\n{STATUS.get(curves[i].status, curves[i].status)}"),
            (n, loss),
            xytext=(edge if many else n * 1.12, place - down),
            color=colours[i],
            fontsize=style.SMALL,
            va="center",
            ha="right" if many else "left",
            fontweight="bold" if kept else "normal",
            arrowprops={"arrowstyle": "-", "color": colours[i], "linewidth": 0.6, "alpha": 0.7} if many else None,
        )
    left = sum(not c.kept for c in curves)
    title = "budget C [FLOPs]" + (f", {left} left out in grey" if left and many else "")
    ax.set_title(title, loc="right", color=style.MUTED, fontsize=style.SMALL, pad=4)
