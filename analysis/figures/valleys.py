"""isoFLOP valleys: loss against parameters, a parabola for each budget, and their minima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.figures import style
from analysis.figures.canvas import Figure, Panel, Table
from analysis.figures.data import Row, budget_label
from analysis.results import Fit, Interval, Valley

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATUS = {
    "minimum": "minimum inside the sizes swept",
    "edge": "no minimum inside",
    "inverted": "curves downward",
    "flat": "too flat",
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
    caption = (
        f"Each colour is one compute budget: {kept} of {len(curves)} valleys have their lowest point inside the "
        "sizes swept (diamonds, with intervals), and the dashed line through them is the compute-optimal path."
        if kept
        else "No budget has a minimum inside the sizes swept, so these runs alone cannot say which size is best."
    )
    if kept < len(curves):
        caption += " Grey valleys were left out of the law."
    panel = Panel(
        "valleys",
        f"Loss against parameters for {len(curves)} compute budgets with fitted parabolas",
        lambda ax: draw(ax, curves, fit.kinds.params, fit.kinds.loss),
        height=4.2,
    )
    return Figure("valleys", "Valleys: which size is best for each budget", caption, (panel,), table(curves))


def draw(ax: Axes, curves: Sequence[Curve], params_kind: str, loss_unit: str) -> Axes:
    """Draw valleys on the axes: points, parabolas, minima with intervals, a label at the end of each."""
    style.frame(ax, f"parameters N [{params_kind}]", f"validation loss [{loss_unit}]")
    drawn = [curve for curve in curves if curve.points]
    every = [x for c in drawn for x, _ in c.points + c.parabola]
    low, high = style.padded(every, 0.05)
    style.log_axis(ax.xaxis, low, high * (high / low) ** 0.2, style.parameters)
    ax.set_ylim(*_loss_limits(drawn))
    colours = dict(zip([c.label for c in drawn], style.ramp(len(drawn)), strict=True))
    for curve in drawn:
        _draw_curve(ax, curve, colours[curve.label] if curve.kept else style.MUTED)
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


def _draw_curve(ax: Axes, curve: Curve, colour: str) -> None:
    fill = colour if curve.kept else "none"
    ax.plot(*zip(*curve.points, strict=True), "o", ms=4.5, mfc=fill, mec=colour, mew=1, label=curve.label, zorder=4)
    if curve.parabola:
        dashes = "-" if curve.kept else ":"
        ax.plot(*zip(*curve.parabola, strict=True), dashes, color=colour, linewidth=1.5, zorder=2)
    if curve.minimum is None:
        return
    n, loss = curve.minimum
    across = None if curve.interval is None else _arms(n, curve.interval)
    up = None if curve.loss_interval is None else _arms(loss, curve.loss_interval)
    ax.errorbar(n, loss, yerr=up, xerr=across, fmt="none", ecolor=style.INK, elinewidth=1.3, capsize=2.5, zorder=5)
    ax.plot(n, loss, "D", ms=7, mfc=colour, mec=style.PAPER, mew=1.2, zorder=6)


def _arms(value: float, bounds: Interval) -> list[list[float]]:
    return [[max(0.0, value - bounds[0])], [max(0.0, bounds[1] - value)]]


def _label(ax: Axes, curves: Sequence[Curve], colours: dict[str, str]) -> None:
    """Write each budget at the right end of its valley, moved apart where valleys come close."""
    low, high = ax.get_ylim()
    ends = [max(c.parabola or c.points) for c in curves]
    places = style.spread([loss for _, loss in ends], (high - low) * 0.055)
    for curve, (n, loss), place in zip(curves, ends, places, strict=True):
        colour = colours[curve.label] if curve.kept else style.MUTED
        text = curve.label + ("" if curve.kept else f"\n{STATUS.get(curve.status, curve.status)}")
        ax.annotate(
            text,
            (n, loss),
            xytext=(n * 1.12, place),
            color=colour,
            fontsize=style.SMALL,
            va="center",
            fontweight="bold" if curve.kept else "normal",
        )
    ax.text(
        0.99,
        0.99,
        "budget C [FLOPs]",
        transform=ax.transAxes,
        ha="right",
        va="top",
        color=style.MUTED,
        fontsize=style.SMALL,
    )
