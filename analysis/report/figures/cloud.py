"""The cloud: where resampled laws put the compute-optimal run of the recommended budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.text import numbers
from analysis.values.study_result import Cloud, Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 20
SHORT = 0.04
"""Lines of equal tokens per parameter that cross less than this share of the axes, at a corner, are not drawn."""
RATIOS = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)


def figure(fit: Fit) -> Figure | None:
    """Return the figure, or None with too few resamples."""
    cloud = fit.cloud
    if cloud is None or len(cloud.params) < LEAST:
        return None
    chosen = fit.recommendation
    of = {} if chosen is None else chosen.by_approach
    name = "law" if "law" in of else "surface"
    star = of.get(name)
    place = None if star is None else (star.params, star.tokens)
    caption = f"Each dot is the best run for {numbers.flops(cloud.budget_flops)} by one resample of the runs"
    if star is not None:
        own = "the proposal" if chosen is not None and chosen.approach == name else "not the one recommended"
        caption += f"; the star is that of all runs, {own}"
    caption += ". Dots lie on the budget's line: what is uncertain is the tokens per parameter."
    panel = Panel(
        "cloud",
        "Resampled compute-optimal parameters and tokens",
        lambda ax: draw(ax, cloud, place, fit.kinds.params),
        height=3.9,
    )
    return Figure("cloud", "Cloud: how sure the best size is", caption, (panel,), table(cloud))


def draw(ax: Axes, cloud: Cloud, star: tuple[float, float] | None, params_kind: str) -> Axes:
    """Draw the resamples, lines of equal tokens per parameter, and the optimum of all runs."""
    style.frame(ax, numbers.labelled("optimal parameters N*", params_kind), "optimal tokens D* [tokens]")
    shown_n, shown_d = _middle(cloud.params), _middle(cloud.tokens)
    extra = [] if star is None else [star]
    x = style.padded([*shown_n, *(p[0] for p in extra)], 0.08)
    y = style.padded([*shown_d, *(p[1] for p in extra)], 0.08)
    style.log_axis(ax.xaxis, *x, style.parameters)
    style.log_axis(ax.yaxis, *y, style.parameters)
    for ratio in RATIOS:
        ends = max(x[0], y[0] / ratio), min(x[1], y[1] / ratio)
        if ends[0] >= ends[1] or math.log(ends[1] / ends[0]) < SHORT * math.log(x[1] / x[0]):
            continue
        ax.plot(ends, [e * ratio for e in ends], color=style.MUTED, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)
        top = math.isclose(ends[1] * ratio, y[1])  # the cloud lies across the line's middle: a label stands at an end
        ax.annotate(
            f"D/N {numbers.count(ratio)}",
            (ends[1], ends[1] * ratio) if top else (ends[0], ends[0] * ratio),
            xytext=(-12, -2) if top else (-4, 3),
            textcoords="offset points",
            ha="right",
            va="top" if top else "bottom",
            fontsize=style.SMALL,
            color=style.MUTED,
        )
    ax.plot(
        cloud.params,
        cloud.tokens,
        "o",
        ms=3,
        mfc=style.BLUE,
        mec="none",
        alpha=0.35,
        zorder=3,
        label="one resample of the runs",
    )
    if star is not None:
        ax.plot(*star, "*", ms=13, mfc=style.ORANGE, mec=style.PAPER, mew=1, zorder=5, ls="none", label="all runs")
    style.key(ax)
    return ax


def table(cloud: Cloud) -> Table:
    """Return the resamples as rows."""
    rows = tuple((n, d, d / n) for n, d in zip(cloud.params, cloud.tokens, strict=True))
    return Table(("params", "tokens", "tokens_per_param"), rows)


def _middle(values: tuple[float, ...]) -> list[float]:
    """Return the values without the outermost hundredth at either end: one wild resample does not set the axes."""
    ordered = sorted(values)
    cut = len(ordered) // 100
    return ordered[cut : len(ordered) - cut]
