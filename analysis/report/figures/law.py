"""The fitted surface: predicted against observed loss, and residuals against N, D and C."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.report.figures.data import MOST_DOTS, Row, dots
from analysis.text import numbers
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES: tuple[tuple[str, str, Callable[[object], str]], ...] = (
    ("params", "parameters N", style.parameters),
    ("tokens", "training tokens D", style.parameters),
    ("flops", "compute C [FLOPs]", numbers.power),
)


def prepare(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that the law was fitted to and predicts, by rising compute."""
    fitted = [r for r in rows if r.used and math.isfinite(r.error) and min(r.params, r.tokens, r.flops) > 0]
    return tuple(sorted(fitted, key=lambda row: row.flops))


def figure(fit: Fit, rows: Sequence[Row]) -> Figure | None:
    """Return predicted against observed and three residual panels, or None without a surface."""
    fitted = prepare(rows)
    if not fitted:
        return None
    panels = [
        Panel(
            "observed",
            "Predicted against observed loss of every run",
            lambda ax: draw_observed(ax, fitted, fit.kinds.loss),
            height=3.3,
        )
    ]
    for name, label, show in AXES:
        panels.append(_residual_panel(fitted, name, label, show))
    return Figure("law", "Law: how well L(N, D) fits every run", _caption(fitted), tuple(panels), table(fitted))


def draw_observed(ax: Axes, rows: Sequence[Row], loss_unit: str) -> Axes:
    """Draw predicted against observed loss with the line of equality; colour is compute."""
    style.frame(ax, f"observed loss [{loss_unit}]", f"predicted loss [{loss_unit}]")
    both = [value for row in rows for value in (row.loss, row.predicted)]
    room = max((max(both) - min(both)) * 0.05, 1e-3)
    low, high = min(both) - room, max(both) + room
    ax.plot([low, high], [low, high], color=style.MUTED, linewidth=1, zorder=1)
    _scatter(ax, [r.loss for r in rows], [r.predicted for r in rows], rows)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    return ax


def draw_residual(ax: Axes, rows: Sequence[Row], name: str, label: str, show: Callable[[object], str]) -> Axes:
    """Draw residuals [%] against one of params, tokens or flops; dashes mark plus and minus one robust sd."""
    style.frame(ax, label, "predicted / observed − 1 [%]")
    x = [getattr(row, name) for row in rows]
    y = [100 * row.error for row in rows]
    style.log_axis(ax.xaxis, *style.padded(x), show)
    ax.axhline(0, color=style.INK, linewidth=1, zorder=1)
    sd = 100 * robust_sd([row.error for row in rows])
    for level in (-sd, sd):
        ax.axhline(level, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    _scatter(ax, x, y, rows)
    reach = max(*(abs(v) for v in y), sd, 0.01) * 1.12
    ax.set_ylim(-reach, reach)
    return ax


def robust_sd(values: Sequence[float]) -> float:
    """Return 1.4826 times the median absolute value: the standard deviation of normal errors around zero."""
    ordered = sorted(abs(v) for v in values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return 1.4826 * median


def table(rows: Sequence[Row]) -> Table:
    """Return observed, predicted and relative error of every fitted run."""
    columns = ("key", "params", "tokens", "flops", "observed", "predicted", "relative_error")
    return Table(columns, tuple((r.key, r.params, r.tokens, r.flops, r.loss, r.predicted, r.error) for r in rows))


def _residual_panel(rows: Sequence[Row], name: str, label: str, show: Callable[[object], str]) -> Panel:
    return Panel(
        name,
        f"Relative errors against {label}",
        lambda ax: draw_residual(ax, rows, name, label, show),
        height=3.3,
    )


def _scatter(ax: Axes, x: Sequence[float], y: Sequence[float], rows: Sequence[Row]) -> None:
    """Draw points coloured by budget where runs have few distinct ones, else in one colour."""
    budgets = _coloured(rows)
    shown = dict(zip(budgets, style.ramp(len(budgets)), strict=True))
    kept = dots(len(rows))
    colours = [shown.get(rows[i].budget, style.BLUE) for i in kept]
    x, y = ([values[i] for i in kept] for values in (x, y))
    ax.scatter(x, y, s=26, c=colours, edgecolors=style.PAPER, linewidths=0.6, alpha=0.9, zorder=3)


def _caption(rows: Sequence[Row]) -> str:
    sd = robust_sd([row.error for row in rows])
    worst = max(rows, key=lambda row: abs(row.error))
    some = f" Of {len(rows):,} runs {MOST_DOTS:,} are drawn." if len(rows) > MOST_DOTS else ""
    return (
        f"Points should scatter around the lines without a pattern: the typical miss is {numbers.percent(sd)}, the "
        f"worst {numbers.percent(abs(worst.error))} (run {worst.key}, {numbers.count(worst.params)} parameters). "
        f"Dashes mark one robust standard deviation{'; colours are budgets' if _coloured(rows) else ''}.{some}"
    )


def _coloured(rows: Sequence[Row]) -> list[float]:
    """Return the budgets that have a colour each: all, or none where they are too many."""
    budgets = sorted({row.budget for row in rows if math.isfinite(row.budget)})
    return budgets if len(budgets) <= 12 else []
