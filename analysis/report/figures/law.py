"""The fitted surface: predicted against observed loss, and residuals against N, D and C."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.report.figures.data import MOST_DOTS, Row, budget_labels, dots, grouped
from analysis.text import numbers
from analysis.text.colours import ramp
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
    fitted = prepare(grouped(rows, fit.fits.valleys.valleys))
    if not fitted:
        return None
    panels = [
        Panel(
            "observed",
            "Predicted against observed loss of every run",
            lambda ax: draw_observed(ax, fitted, fit.kinds.loss),
            height=3.7,
        )
    ]
    for name, label, show in AXES:
        counted = numbers.labelled(label, fit.kinds.params) if name == "params" else label
        panels.append(_residual_panel(fitted, name, counted, show))
    return Figure("law", "Law: how well L(N, D) fits every run", _caption(fitted), tuple(panels), table(fitted))


def draw_observed(ax: Axes, rows: Sequence[Row], loss_unit: str) -> Axes:
    """Draw predicted against observed loss with the line of equality; colour is compute."""
    style.frame(ax, f"observed loss [{loss_unit}]", f"predicted loss [{loss_unit}]")
    both = [value for row in rows for value in (row.loss, row.predicted)]
    room = max((max(both) - min(both)) * 0.05, 1e-3)
    low, high = min(both) - room, max(both) + room
    ax.plot([low, high], [low, high], color=style.MUTED, linewidth=1, zorder=1, label="predicted = observed")
    _scatter(ax, [r.loss for r in rows], [r.predicted for r in rows], rows, named=True)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    style.key(ax, columns=3, title="budget C [FLOPs]" if _coloured(rows) else "")
    return ax


def draw_residual(ax: Axes, rows: Sequence[Row], name: str, label: str, show: Callable[[object], str]) -> Axes:
    """Draw residuals [%] against one of params, tokens or flops; dashes mark plus and minus one robust sd.

    Against compute, where runs share budgets, a bar marks each budget's mean: a law that bends is seen there.
    """
    style.frame(ax, label, "predicted / observed − 1 [%]")
    x = [getattr(row, name) for row in rows]
    y = [100 * row.error for row in rows]
    style.log_axis(ax.xaxis, *style.padded(x), show)
    ax.axhline(0, color=style.INK, linewidth=1, zorder=1)
    sd = 100 * robust_sd([row.error for row in rows])
    for level, text in ((-sd, None), (sd, f"one robust sd, {numbers.percent(sd / 100)}")):
        ax.axhline(level, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1, label=text)
    _scatter(ax, x, y, rows)
    if name == "flops":
        _means(ax, rows)
    reach = max(*(abs(v) for v in y), sd, 0.01) * 1.12
    ax.set_ylim(-reach, reach)
    style.key(ax, columns=1)
    return ax


def by_budget(rows: Sequence[Row]) -> tuple[tuple[float, float, float], ...]:
    """Return compute [FLOPs], mean relative error and its standard error of each budget that two runs share."""
    found = []
    for budget in _coloured(rows):
        here = [row for row in rows if row.budget == budget]
        if len(here) < 2:
            continue
        mean = sum(row.error for row in here) / len(here)
        spread = math.sqrt(sum((row.error - mean) ** 2 for row in here) / (len(here) - 1))
        compute = math.exp(sum(math.log(row.flops) for row in here) / len(here))
        found.append((compute, mean, spread / math.sqrt(len(here))))
    return tuple(found)


def _means(ax: Axes, rows: Sequence[Row]) -> None:
    """Draw each budget's mean residual with its standard error."""
    means = by_budget(rows)
    if not means:
        return
    x, y, error = zip(*means, strict=True)
    ax.errorbar(
        x, [100 * v for v in y], yerr=[100 * v for v in error], fmt="_", ms=16, mew=2, color=style.INK, elinewidth=1.2,
        capsize=3, zorder=4, label="mean of a budget, its standard error",
    )  # fmt: skip


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
        height=3.7,
    )


def _scatter(ax: Axes, x: Sequence[float], y: Sequence[float], rows: Sequence[Row], named: bool = False) -> None:
    """Draw points coloured by budget where runs have few distinct ones, else in one colour; with a key if `named`."""
    budgets = _coloured(rows)
    kept = dots(len(rows))
    shown = dict(zip(budgets, ramp(len(budgets)), strict=True))
    labels = budget_labels(budgets) if named else {}
    for budget in [*budgets, None]:
        here = [i for i in kept if (rows[i].budget == budget if budget is not None else rows[i].budget not in shown)]
        if not here:
            continue
        drawn = ax.plot(
            [x[i] for i in here], [y[i] for i in here], "o", ms=5.2, mfc=shown.get(budget or 0.0, style.BLUE),
            mec=style.PAPER, mew=0.6, zorder=3, label=labels.get(budget or 0.0),
        )  # fmt: skip
        style.hover(drawn[0], [rows[i].name for i in here])


def _caption(rows: Sequence[Row]) -> str:
    sd = robust_sd([row.error for row in rows])
    worst = max(rows, key=lambda row: abs(row.error))
    off = [(c, mean) for c, mean, error in by_budget(rows) if abs(mean) > 2 * error]
    missed = ", ".join(f"{numbers.signed(mean, 1)} at {numbers.flops(compute)}" for compute, mean in off)
    missed = f" Budgets whose mean is more than two standard errors off: {missed}." if off else ""
    some = f" Of {len(rows):,} runs {MOST_DOTS:,} are drawn." if len(rows) > MOST_DOTS else ""
    return (
        f"Points should scatter around the lines without a pattern: the typical miss is {numbers.percent(sd)}, the "
        f"worst {numbers.percent(abs(worst.error))} (run {worst.key}, {numbers.amount(worst.params)} parameters). "
        f"Dashes mark one robust standard deviation{'; colours are budgets' if _coloured(rows) else ''}.{missed}{some}"
    )


def _coloured(rows: Sequence[Row]) -> list[float]:
    """Return the budgets that have a colour each: all, or none where they are too many."""
    budgets = sorted({row.budget for row in rows if math.isfinite(row.budget)})
    return budgets if len(budgets) <= 12 else []
