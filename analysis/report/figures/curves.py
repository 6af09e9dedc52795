"""Learning curves: validation loss by training tokens, one line a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.report.figures.data import Curve, budget_labels
from analysis.text import numbers
from analysis.text.colours import ramp
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_LABELS = 8


def figure(fit: Fit, curves: Sequence[Curve]) -> Figure | None:
    """Return the figure, or None without curves."""
    if not curves:
        return None
    panel = Panel(
        "curves",
        f"Validation loss against training tokens of {len(curves)} runs",
        lambda ax: draw(ax, curves, fit.kinds.loss),
        height=4.0,
    )
    caption = (
        "Each line should fall smoothly to the dot where its run ends; a run whose line jumps, or flattens long before "
        "its end, deserves a look before the law is believed."
    )
    return Figure("curves", "Learning curves", caption, (panel,), table(curves))


def draw(ax: Axes, curves: Sequence[Curve], loss_unit: str) -> Axes:
    """Draw one line a run, coloured by budget, a dot at its end; the first tenth of the fall may leave the axes."""
    style.frame(ax, "training tokens", f"validation loss [{loss_unit}]")
    budgets = sorted({c.budget for c in curves if math.isfinite(c.budget)})
    colours = dict(zip(budgets, ramp(len(budgets)), strict=True))
    labels = budget_labels(budgets)
    named: set[float] = set()
    for c in sorted(curves, key=lambda curve: (curve.budget, curve.params)):
        colour = colours.get(c.budget, style.MUTED)
        label = None
        if c.budget in colours and c.budget not in named:
            named.add(c.budget)
            label = labels[c.budget]
        ax.plot(c.tokens, c.losses, color=colour, linewidth=1.1, alpha=0.75, label=label)
        end = ax.plot(c.tokens[-1], c.losses[-1], "o", ms=4, color=colour, mec=style.PAPER, mew=0.5, zorder=3)
        style.hover(end[0], [f"{c.key}: N {numbers.count(c.params)}, loss {numbers.number(c.losses[-1], 4)}"])
    style.log_axis(ax.xaxis, *style.padded([t for c in curves for t in c.tokens], 0.04), style.parameters)
    ax.set_ylim(*_limits(curves))
    if named:
        _legend(ax)
    return ax


def table(curves: Sequence[Curve]) -> Table:
    """Return every point of every curve."""
    rows = [(c.key, c.budget, c.params, t, loss) for c in curves for t, loss in zip(c.tokens, c.losses, strict=True)]
    return Table(("key", "budget_flops", "params", "tokens", "loss"), tuple(rows))


def _legend(ax: Axes) -> None:
    """Name budgets below the axes, where no curve is; with many, evenly chosen ones."""
    named = [line for line in ax.lines if not line.get_label().startswith("_")]  # type: ignore[attr-defined]
    shown = style.thinned(len(named), MOST_LABELS)
    for i, line in enumerate(named):
        if i not in shown:
            line.set_label(None)
    style.key(ax, columns=4, title="budget C [FLOPs]")


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    every = sorted(loss for c in curves for loss in c.losses)
    high = every[min(len(every) - 1, int(len(every) * 0.98))]
    room = max((high - every[0]) * 0.06, 1e-3)
    return every[0] - room, high + room
