"""The sensitivity table as a figure: what the exponent becomes when one choice of the analysis changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.report import sentences
from analysis.report.figures import style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.text import numbers
from analysis.values import choice_lines
from analysis.values.blocks import Interval
from analysis.values.study_result import Choice, Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = ((style.ORANGE, "D"), (style.BLUE, "o"))
"""Colour and mark of the fit itself and of another choice."""
ROW = 0.24
SHORT = 32


def figure(fit: Fit) -> Figure | None:
    """Return the figure, or None with fewer than two options."""
    lines = [line for line in fit.sensitivity if line.value is not None]
    if len(lines) < 2:
        return None
    whole = fit.fits.surface.intervals.get(lines[0].quantity)
    alone = f", against {numbers.interval(whole)} by its interval alone" if whole else ""
    text = sentences.choices(sentences.read(fit), alone)
    caption = "Each row changes one choice and fits the surface again" + (f": {text}" if text else "")
    if text and (rest := len(lines) - len(choice_lines.telling(lines))):
        caption += f". {numbers.counted(rest, 'row')} of fewer runs may lie beyond that by chance"
    panel = Panel(
        "choices",
        f"The exponent {lines[0].quantity} under other choices",
        lambda ax: draw(ax, lines, whole),
        height=1.6 + ROW * len(lines),
    )
    title = "Sensitivity: what other choices would give"
    return Figure("sensitivity", title, caption + ".", (panel,), table(fit.sensitivity))


def draw(ax: Axes, lines: Sequence[Choice], whole: Interval | None) -> Axes:
    """Draw the quantity of every option with its interval; the band is the interval of the fit itself."""
    style.frame(ax, f"exponent {lines[0].quantity}", "")
    ax.grid(False, axis="y")
    if whole is not None:
        ax.axvspan(*whole, color=style.BLUE, alpha=0.14, linewidth=0, zorder=0)
    places = list(range(len(lines)))[::-1]
    for place, line in zip(places, lines, strict=True):
        colour, mark = LOOKS[0 if place == places[0] else 1]
        if line.low is not None and line.high is not None:
            ax.plot([line.low, line.high], [place, place], color=colour, linewidth=1.4, zorder=2)
        assert line.value is not None
        ax.plot(line.value, place, mark, ms=5.5, mfc=colour, mec=style.PAPER, zorder=3)
    ax.set_yticks(places, [_label(line) for line in lines])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.7, len(lines) - 0.3)
    ax.locator_params(axis="x", nbins=5)
    for (colour, mark), name in zip(
        LOOKS, ("the fit itself, its interval", "another choice, its interval"), strict=True
    ):
        ax.plot([], [], f"{mark}-", color=colour, ms=5.5, label=name)
    style.key(ax, columns=1)
    return ax


def table(lines: Sequence[Choice]) -> Table:
    """Return the table's lines."""
    columns = ("choice", "option", "quantity", "value", "low", "high", "rows")
    return Table(columns, tuple((c.choice, c.option, c.quantity, c.value, c.low, c.high, c.rows) for c in lines))


def _label(line: Choice) -> str:
    text = numbers.typeset(line.words)
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"
