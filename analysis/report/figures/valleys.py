"""isoFLOP valleys: loss against parameters, the law and a parabola for each budget, and the parabolas' minima."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.along import Along, along
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.report.figures.data import MOST_DOTS, Row, budget_labels, dots
from analysis.text import numbers
from analysis.text.colours import ramp
from analysis.values.blocks import STATUS, Interval, Valley
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 8
"""Budgets that are named one by one; with more, valleys left out are counted instead."""

MARKS = {"minimum": "o", "edge": "o", "inverted": "v", "flat": "s", "negative": "P", "too_few": "^"}
"""The dot of a run by what became of its budget: filled where the budget has a minimum, hollow where it is left out."""
LEFT_OUT = (("mid_schedule", "+", "schedule not finished"), ("not_best", "1", "another rate is better"))
OTHER = ("x", "another reason")
SAME_BUDGET = 0.01
"""Runs whose FLOPs lie within this of a budget's, in logs, are of that budget."""


@dataclass(frozen=True)
class Curve:
    """A valley ready to draw: its runs, its parabola and the law sampled, its minimum; `kept` says that fits use it.

    `names` are those of the points. `left` are runs of this budget that no fit uses: parameters, loss, why, name.
    """

    budget: float
    label: str
    status: str
    kept: bool
    points: tuple[tuple[float, float], ...]
    parabola: tuple[tuple[float, float], ...]
    minimum: tuple[float, float] | None
    interval: Interval | None
    loss_interval: Interval | None
    names: tuple[str, ...] = ()
    law: tuple[tuple[float, float], ...] = ()
    left: tuple[tuple[float, float, str, str], ...] = ()


def prepare(
    valleys: Sequence[Valley], rows: Sequence[Row], samples: int = 60, law: Along | None = None
) -> tuple[Curve, ...]:
    """Return the valleys as curves, by rising budget, with `law` along each; runs without a loss are left out."""
    by_key = {row.key: row for row in rows}
    labels = budget_labels(v.flops_budget for v in valleys)
    ordered = sorted(valleys, key=lambda v: v.flops_budget)
    curves = [_curve(v, by_key, labels[v.flops_budget], samples, law) for v in ordered]
    left = _unused([curve.budget for curve in curves], rows)
    return tuple(replace(curve, left=tuple(map(_left, here))) for curve, here in zip(curves, left, strict=True))


def figure(fit: Fit, rows: Sequence[Row]) -> Figure | None:
    """Return the figure of all valleys, or None where there is no run to show."""
    curves = prepare(fit.fits.valleys.valleys, rows, law=along(fit, rows))
    if not any(curve.points for curve in curves):
        return None
    panel = Panel(
        "valleys",
        f"Loss against parameters for {len(curves)} compute budgets with the law and fitted parabolas",
        lambda ax: draw(ax, curves, fit.kinds.params, fit.kinds.loss),
        height=5.0,
    )
    return Figure("valleys", "Valleys: which size is best for each budget", _caption(curves), (panel,), table(curves))


def draw(ax: Axes, curves: Sequence[Curve], params_kind: str, loss_unit: str) -> Axes:
    """Draw valleys on the axes: points, law, parabolas, minima with intervals, a label at the end of each, the key."""
    style.frame(ax, numbers.labelled("parameters N", params_kind), f"loss [{loss_unit}]")
    drawn = [curve for curve in curves if curve.points]
    style.log_axis(ax.xaxis, *_sizes_shown(drawn), style.parameters)
    ax.set_ylim(*_loss_limits(drawn))
    faint = len(drawn) > MOST_LABELS
    for curve, colour in zip(drawn, ramp(len(drawn)), strict=True):
        _draw_curve(ax, curve, colour, 0.35 if faint and not curve.kept else 1.0, max(MOST_DOTS // len(drawn), 1))
    minima = [c.minimum for c in drawn if c.minimum is not None]
    if len(minima) > 1:
        ax.plot(*zip(*minima, strict=True), color=style.MUTED, linestyle=(0, (1, 2)), linewidth=1.2, zorder=3)
    _label(ax, drawn, ramp(len(drawn)))
    _key(ax, drawn)
    return ax


def _sizes_shown(drawn: Sequence[Curve]) -> tuple[float, float]:
    """Return the ends of the axis: all runs and parabolas, and room for the labels on the right."""
    every = [x for c in drawn for x, _ in c.points + c.parabola] + [n for c in drawn for n, *_ in c.left]
    low, high = style.padded(every, 0.05)
    return low, high * (high / low) ** (0.2 if len(drawn) <= MOST_LABELS else 0.3)


def table(curves: Sequence[Curve]) -> Table:
    """Return points, parabola and law samples, minima and runs left out as rows."""
    rows: list[tuple[object, ...]] = []
    for c in curves:
        rows += [(c.budget, c.status, "run", n, loss, None, None) for n, loss in c.points]
        rows += [(c.budget, c.status, "parabola", n, loss, None, None) for n, loss in c.parabola]
        rows += [(c.budget, c.status, "law", n, loss, None, None) for n, loss in c.law]
        rows += [(c.budget, why, "left out", n, loss, None, None) for n, loss, why, _ in c.left]
        if c.minimum is not None:
            rows.append((c.budget, c.status, "minimum", *c.minimum, *(c.interval or (None, None))))
    return Table(("budget_flops", "status", "what", "params", "loss", "params_low", "params_high"), tuple(rows))


def _caption(curves: Sequence[Curve]) -> str:
    kept = sum(curve.kept for curve in curves)
    diamonds = "diamonds, with intervals" if any(c.interval for c in curves) else "diamonds"
    caption = (
        f"Each colour is one compute budget: {kept} of {len(curves)} valleys {'has its' if kept == 1 else 'have their'}"
        f" lowest point inside the sizes swept ({diamonds})."
        if kept
        else "No budget has a minimum inside the sizes swept, so these runs alone cannot say which size is best."
    )
    if kept < len(curves):
        caption += " Hollow marks belong to budgets without a minimum, which approach 2 leaves out."
    low, high = _sizes_shown([curve for curve in curves if curve.points])
    if any(c.interval and (c.interval[0] < low or c.interval[1] > high) for c in curves):
        caption += " A bar without a cap goes on beyond the edge."
    if any(curve.law for curve in curves):
        caption += " Where the law and a budget's own parabola diverge, one of them does not hold there."
    if (runs := sum(len(curve.points) for curve in curves)) > MOST_DOTS:
        caption += f" Of {runs:,} runs about {MOST_DOTS:,} are drawn."
    return caption


def _left(row: Row) -> tuple[float, float, str, str]:
    return row.params, row.loss, row.drop_code or row.state, row.name


def _unused(budgets: Sequence[float], rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each budget, within 1 %, that no fit uses; `budgets` rise."""
    logs = [math.log(budget) for budget in budgets]
    found: list[list[Row]] = [[] for _ in budgets]
    for row in rows:
        if row.used or not (math.isfinite(row.loss) and row.params > 0 and 0 < row.budget < math.inf):
            continue
        at = math.log(row.budget)
        for i in range(bisect_right(logs, at - SAME_BUDGET), bisect_left(logs, at + SAME_BUDGET)):
            found[i].append(row)
    return found


def _curve(valley: Valley, by_key: dict[str, Row], label: str, samples: int, law: Along | None) -> Curve:
    known = sorted((by_key[k] for k in valley.keys if k in by_key), key=lambda r: (r.params, r.loss))
    runs = [row for row in known if row.params > 0 and math.isfinite(row.loss)]
    minimum = None
    if valley.status == "minimum" and valley.params_opt is not None and valley.loss_opt is not None:
        minimum = (valley.params_opt, valley.loss_opt)
    return Curve(
        budget=valley.flops_budget,
        label=label,
        status=valley.status,
        kept=minimum is not None,
        points=tuple((row.params, row.loss) for row in runs),
        parabola=_sample(valley, samples),
        minimum=minimum,
        interval=valley.params_interval if minimum else None,
        loss_interval=valley.loss_interval if minimum else None,
        names=tuple(row.name for row in runs),
        law=() if law is None or not runs else _followed(law, valley.flops, runs, samples),
    )


def _followed(law: Along, flops: float, runs: Sequence[Row], samples: int) -> tuple[tuple[float, float], ...]:
    """Return the law along a budget over the sizes that were run."""
    low, high = runs[0].params, runs[-1].params
    if not low < high:
        return ()
    sizes = [low * (high / low) ** (i / (samples - 1)) for i in range(samples)]
    return tuple((n, loss) for n, loss in zip(sizes, law(flops, sizes), strict=True) if math.isfinite(loss))


def _sample(valley: Valley, samples: int) -> tuple[tuple[float, float], ...]:
    if len(valley.coefficients) != 3:
        return ()
    low, high = (math.log(n) for n in valley.params_range)
    c0, c1, c2 = valley.coefficients
    places = [low + (high - low) * i / (samples - 1) for i in range(samples)]
    return tuple((math.exp(p), c0 + c1 * (p - valley.center) + c2 * (p - valley.center) ** 2) for p in places)


def _loss_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the limits that hold all runs and curves; of runs left out, those not far above them."""
    losses = [loss for c in curves for _, loss in c.points + c.parabola + c.law]
    low, high = min(losses), max(losses)
    top = high + 0.3 * (high - low)
    losses += [loss for c in curves for _, loss, *_ in c.left if low <= loss <= top]
    low, high = min(losses), max(losses)
    room = max((high - low) * 0.06, 1e-3)
    return low - room, high + room


def _draw_curve(ax: Axes, curve: Curve, colour: str, alpha: float, most: int) -> None:
    """Draw a valley, at most so many of its runs as dots."""
    index = dots(len(curve.points), most)
    fill = colour if curve.kept else style.PAPER
    drawn = ax.plot(
        *zip(*(curve.points[i] for i in index), strict=True), MARKS.get(curve.status, "o"), ms=4.8, mfc=fill,
        mec=colour, mew=1.1, alpha=alpha, zorder=4,
    )  # fmt: skip
    if len(curve.names) == len(curve.points):
        style.hover(drawn[0], [curve.names[i] for i in index])
    if curve.law:
        ax.plot(*zip(*curve.law, strict=True), "-", color=colour, linewidth=1.6, alpha=alpha, zorder=2.5)
    if curve.parabola:
        ax.plot(*zip(*curve.parabola, strict=True), "--", color=colour, linewidth=1.1, alpha=alpha, zorder=2)
    _draw_left(ax, curve, colour, most)
    if curve.minimum is None:
        return
    n, loss = curve.minimum
    across = None if curve.interval is None else _arms(n, curve.interval)
    up = None if curve.loss_interval is None else _arms(loss, curve.loss_interval)
    ax.errorbar(n, loss, yerr=up, xerr=across, fmt="none", ecolor=style.INK, elinewidth=1.3, capsize=2.5, zorder=5)
    ax.plot(n, loss, "D", ms=7, mfc=colour, mec=style.PAPER, mew=1.2, zorder=6)


def _draw_left(ax: Axes, curve: Curve, colour: str, most: int) -> None:
    """Draw the runs that no fit uses, at most so many, by what left them out."""
    low, high = ax.get_ylim()
    seen = [(n, loss, _mark(why)[0], name) for n, loss, why, name in curve.left if low <= loss <= high]
    seen = [seen[i] for i in dots(len(seen), most)]
    for mark in dict.fromkeys(mark for _, _, mark, _ in seen):
        sizes, losses, _, names = zip(*(run for run in seen if run[2] == mark), strict=True)
        drawn = ax.plot(sizes, losses, mark, ls="none", ms=6, mec=colour, mew=1.3, zorder=4)
        style.hover(drawn[0], list(names))


def _arms(value: float, bounds: Interval) -> list[list[float]]:
    return [[max(0.0, value - bounds[0])], [max(0.0, bounds[1] - value)]]


def _mark(why: str) -> tuple[str, str]:
    """Return the symbol of a run that was left out for this reason, and the reason in words."""
    return next(((mark, text) for code, mark, text in LEFT_OUT if code == why), OTHER)


def _key(ax: Axes, curves: Sequence[Curve]) -> None:
    """Say below the axes what lines and symbols are; colours are named at the ends of the valleys."""
    shown: list[tuple[str, dict[str, object]]] = []
    if any(c.kept for c in curves):
        shown.append(("run", {"marker": "o", "mfc": style.INK}))
        shown.append(("minimum of a parabola", {"marker": "D", "mfc": style.INK, "ms": 6}))
    if sum(c.kept for c in curves) > 1:
        shown.append(("the minima, joined", {"ls": ":", "lw": 1.1}))
    if any(c.law for c in curves):
        shown.append(("fitted law", {"ls": "-"}))
    if any(c.parabola for c in curves):
        shown.append(("the budget's parabola", {"ls": "--", "lw": 1.1}))
    for status in dict.fromkeys(c.status for c in curves if not c.kept):
        text = f"left out: {STATUS.get(status, status)}"
        shown.append((text, {"marker": MARKS.get(status, "o"), "mfc": style.PAPER}))
    for mark, text in dict.fromkeys(_mark(why) for c in curves for _, _, why, _ in c.left):
        shown.append((f"left out: {text}", {"marker": mark}))
    for text, look in shown:
        options: dict[str, object] = {"color": style.INK, "mec": style.INK, "ls": "none", "ms": 4.8, "lw": 1.6, **look}
        ax.plot([], [], label=text, **options)  # type: ignore[arg-type]
    style.key(ax, columns=2)


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
        ax.annotate(
            curves[i].label,
            (n, loss),
            xytext=(edge if many else n * 1.12, place - down),
            color=style.INK if curves[i].kept else style.MUTED,
            fontsize=style.SMALL,
            va="center",
            ha="right" if many else "left",
            fontweight="bold" if curves[i].kept else "normal",
            arrowprops={"arrowstyle": "-", "color": colours[i], "linewidth": 0.8} if many else None,
        )
    left = sum(not c.kept for c in curves)
    title = "budget C [FLOPs]" + (f", {left} left out and faint" if left and many else "")
    ax.set_title(title, loc="right", color=style.MUTED, fontsize=style.SMALL, pad=4)
