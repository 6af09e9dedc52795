"""The frontier: compute-optimal parameters and tokens against compute, with band and recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.report import sentences
from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.text import numbers
from analysis.values.blocks import Interval
from analysis.values.json_values import to_json
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARKS = ((style.ORANGE, "*", 13.0), (style.GREEN, "s", 6.0), (style.PINK, "^", 7.0))
"""Colour, mark and size [points] of the recommended proposal and of up to two others."""
ASIDE = 0.045
"""How far beside the budget the other proposals are drawn, as a share of the axis: nearer, the star hides them."""


@dataclass(frozen=True)
class Point:
    """A value at a compute budget [FLOPs], with its interval where there is one."""

    flops: float
    value: float
    interval: Interval | None = None
    label: str = ""


@dataclass(frozen=True)
class Line:
    """A law sampled over compute, with its band (empty where the data give none) and where the data end."""

    flops: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Path:
    """One quantity along the frontier: what was measured, the law through it and what it proposes."""

    quantity: str
    observed: tuple[Point, ...]
    line: Line | None
    proposed: tuple[Point, ...]
    data_end: float


def prepare(fit: Fit, quantity: str) -> Path:
    """Return the frontier of "params" or "tokens"."""
    observed = []
    for valley in fit.fits.valleys.valleys:
        value = valley.params_opt if quantity == "params" else valley.tokens_opt
        bounds = valley.params_interval if quantity == "params" else valley.tokens_interval
        if value is not None and valley.status == "minimum":
            observed.append(Point(valley.flops, value, bounds))
    observed.sort(key=lambda point: point.flops)
    proposed = proposals(fit, quantity)
    return Path(quantity, tuple(observed), followed(fit, quantity), proposed, data_end(fit))


def followed(fit: Fit, quantity: str) -> Line | None:
    """Return the path of the recommended law in "params", "tokens" or "loss", with its band where it has one."""
    plan = fit.recommendation
    points = [p for p in plan.path if getattr(p, quantity) is not None] if plan is not None else []
    if len(points) < 2:
        return None
    flops, value = (tuple(float(getattr(p, name)) for p in points) for name in ("flops", quantity))
    ends = [p.intervals.get(quantity) for p in points]
    known = [pair for pair in ends if pair is not None]
    if len(known) < len(points):
        return Line(flops, value)
    return Line(flops, value, tuple(low for low, _ in known), tuple(high for _, high in known))


def data_end(fit: Fit) -> float:
    """Return the exact FLOPs of the largest run that fits use: what lies above is beyond the data."""
    if fit.runs.largest_flops is not None:
        return fit.runs.largest_flops
    return max((v.flops for v in fit.fits.valleys.valleys), default=math.nan)


def proposals(fit: Fit, quantity: str) -> tuple[Point, ...]:
    """Return what each approach recommends of "params", "tokens" or "loss", the recommended approach first."""
    chosen = fit.recommendation
    if chosen is None:
        return ()
    names = sorted(chosen.by_approach, key=lambda name: (name != chosen.approach, name))
    points = []
    for name in names:
        value = getattr(chosen.by_approach[name], quantity)
        if value is not None and math.isfinite(value):
            bounds = chosen.by_approach[name].intervals.get(quantity)
            points.append(Point(chosen.budget_flops, value, bounds, name))
    return tuple(points)


def figure(fit: Fit) -> Figure | None:
    """Return the two panels, or None where no budget has a minimum and nothing is recommended."""
    params, tokens = prepare(fit, "params"), prepare(fit, "tokens")
    if not params.observed and not params.proposed:
        return None
    panels = (
        Panel(
            "params",
            "Compute-optimal parameters against compute",
            lambda ax: draw(ax, params, numbers.labelled("optimal parameters N*", fit.kinds.params)),
        ),
        Panel(
            "tokens",
            "Compute-optimal training tokens against compute",
            lambda ax: draw(ax, tokens, "optimal tokens D* [tokens]"),
        ),
    )
    return Figure(
        "frontier",
        "Frontier: how size and data grow with compute",
        _caption(fit, params),
        panels,
        table((params, tokens), approach(fit)),
    )


def approach(fit: Fit) -> str:
    """Return the name of the recommended approach, empty where there is none."""
    return "" if fit.recommendation is None else fit.recommendation.approach


def draw(ax: Axes, path: Path, label: str) -> Axes:
    """Draw one frontier on log-log axes: minima with intervals, the law with its band, the recommendation."""
    style.frame(ax, "compute C [FLOPs]", label)
    shown = [*path.observed, *path.proposed]
    if (
        path.line is not None and not path.observed
    ):  # where no budget has a minimum the law's path shows the data's range
        shown.append(Point(path.line.flops[0], path.line.value[0]))
    compute = [p.flops for p in shown]
    ends = [e for p in shown for e in (p.value, *(p.interval or ()))]
    style.log_axis(ax.xaxis, *style.padded(compute, 0.1), numbers.power)
    style.log_axis(ax.yaxis, *style.padded(ends, 0.1), style.parameters)
    shade_extrapolation(ax, path.data_end)
    if path.line is not None:
        draw_line(ax, path.line, path.data_end)
    draw_points(ax, path.observed, path.proposed)
    style.key(ax, columns=2)
    return ax


def draw_line(ax: Axes, line: Line, data_end: float, name: str = "recommended law", colour: str = style.BLUE) -> None:
    """Draw a law: solid where there are data, dashed beyond, its band behind."""
    if line.low:
        ax.fill_between(
            line.flops, line.low, line.high, color=colour, alpha=0.16, linewidth=0, zorder=1, label="its interval"
        )
    pairs = list(zip(line.flops, line.value, strict=True))
    inside = [p for p in pairs if not p[0] > data_end]
    beyond = [p for p in pairs if p[0] > data_end]
    if inside:
        ax.plot(*zip(*inside, strict=True), color=colour, linewidth=1.8, zorder=2, label=name)
    if beyond:
        ax.plot(
            *zip(*(inside[-1:] + beyond), strict=True),
            "--",
            color=colour,
            linewidth=1.6,
            zorder=2,
            label="beyond the data",
        )


def draw_points(
    ax: Axes, observed: Sequence[Point], proposed: Sequence[Point], what: str = "minima of the valleys"
) -> None:
    """Draw minima as dots and each approach's proposal beside the others, intervals as bars."""
    for i, point in enumerate(observed):
        error(ax, point, point.flops, style.INK)
        ax.plot(
            point.flops,
            point.value,
            "o",
            ms=6,
            mfc=style.BLUE,
            mec=style.PAPER,
            mew=1,
            zorder=4,
            label=what if i == 0 else None,
        )
    low, high = ax.get_xlim()
    aside = (high / low) ** ASIDE
    for i, point in enumerate(proposed):
        colour, mark, size = MARKS[min(i, 2)]
        place = point.flops * (1.0, aside, 1 / aside)[min(i, 2)]
        error(ax, point, place, colour)
        name = "recommended: " if i == 0 else "also: "
        ax.plot(
            place,
            point.value,
            mark,
            ms=size,
            mfc=colour,
            mec=style.PAPER,
            mew=1,
            zorder=6 - i,
            label=f"{name}{point.label}",
        )


def error(ax: Axes, point: Point, place: float, colour: str) -> None:
    """Draw a point's interval as a vertical bar with caps, where it has one."""
    if point.interval is None:
        return
    low, high = point.interval
    arms = [[max(0.0, point.value - low)], [max(0.0, high - point.value)]]
    ax.errorbar(place, point.value, yerr=arms, fmt="none", ecolor=colour, elinewidth=1.5, capsize=3, zorder=3)


def shade_extrapolation(ax: Axes, data_end: float) -> None:
    """Tint what lies beyond the largest run; the dashes there have the key's "beyond the data"."""
    _, high = ax.get_xlim()
    if data_end < high:
        ax.axvspan(data_end, high, color=style.MUTED, alpha=0.08, linewidth=0, zorder=0)


def table(paths: Sequence[Path], approach: str) -> Table:
    """Return minima, samples of the path of the recommended `approach` and proposals as rows."""
    rows: list[tuple[object, ...]] = []
    for path in paths:
        for what, points in (("minimum", path.observed), ("proposed", path.proposed)):
            rows += [(path.quantity, what, p.label, p.flops, p.value, *(p.interval or (None, None))) for p in points]
        if path.line is not None:
            band = path.line.low or (None,) * len(path.line.flops)
            top = path.line.high or (None,) * len(path.line.flops)
            for c, v, low, high in zip(path.line.flops, path.line.value, band, top, strict=True):
                rows.append((path.quantity, "law", approach, c, v, low, high))
    return Table(("quantity", "what", "approach", "flops", "value", "low", "high"), tuple(rows))


def _caption(fit: Fit, drawn: Path) -> str:
    """Return what is drawn: the recommended law's path, the minima that were seen, the proposals."""
    plan, parts = fit.recommendation, []
    if plan is not None and drawn.line is not None and "params" in plan.growth:
        growth = plan.growth["params"]
        between = numbers.interval(growth.interval)
        known = f"no interval: {growth.reason}" if between == numbers.MISSING else between
        parts.append(
            f"The line is the recommended law's path, by {sentences.by(to_json(plan))}: with ten times the compute the "
            f"best model is {numbers.factor(10**growth.exponent)} larger, its N* grows as "
            f"C^{numbers.number(growth.exponent)} ({known})"
        )
    elif drawn.line is not None and plan is not None:
        parts.append(f"The line is the recommended law's path, by {sentences.by(to_json(plan))}")
    else:
        parts.append("No law is drawn: no approach identifies how the best size grows")
    if drawn.observed:
        parts.append("dots are the minima of single budgets, by their parabolas")
    return "; ".join([*parts, *proposals_in_words(drawn.proposed)]) + "."


def proposals_in_words(proposed: Sequence[Point]) -> list[str]:
    """Return what the marks of the proposals are, and that those beside the star are for its budget too."""
    if not proposed:
        return []
    said = [f"the star is the proposal for {numbers.flops(proposed[0].flops)}"]
    if len(proposed) > 1:
        pairs = zip(("square", "triangle"), proposed[1:], strict=False)
        marks = " and ".join(f"the {mark} is that of the {point.label}" for mark, point in pairs)
        said.append(f"{marks} for the same budget, drawn beside it")
    return said
