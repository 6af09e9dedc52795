"""The figure for a paper: valleys, the growth of N* and D*, and what compute buys, with the exponents in the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from analysis.report.figures import frontier, loss, style, valleys
from analysis.report.figures.along import along
from analysis.report.figures.canvas import Figure, Panel
from analysis.report.figures.data import Row
from analysis.report.figures.frontier import Path
from analysis.text import numbers
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "fig_paper"
SYMBOLS = {"params": ("N*", "ᵃ", "a"), "tokens": ("D*", "ᵇ", "b")}
LOOKS = {"params": (style.BLUE, "o"), "tokens": (style.ORANGE, "s")}
HEIGHT = 4.6


def figure(fit: Fit, rows: Sequence[Row]) -> Figure | None:
    """Return the figure, or None where a study has no valleys or nothing is recommended."""
    curves = valleys.prepare(fit.fits.valleys.valleys, rows, law=along(fit, rows))
    bought = loss.prepare(fit)
    if fit.recommendation is None or not any(c.points for c in curves) or not bought.observed:
        return None
    paths = tuple(frontier.prepare(fit, quantity) for quantity in SYMBOLS)

    def sizes(ax: Axes) -> Axes:
        return valleys.draw(ax, curves, fit.kinds.params, fit.kinds.loss)

    def growth(ax: Axes) -> Axes:
        return draw_growth(ax, fit, paths)

    def buys(ax: Axes) -> Axes:
        loss.draw(ax, bought, fit.kinds.loss, fit.fits.frontier.points_are, exponent_of_loss(fit))
        _only_laws(ax)
        style.key(ax, columns=1)
        return ax

    panels = (
        Panel("sizes", "Loss against parameters by budget", _lettered("a", sizes), HEIGHT),
        Panel("growth", "Compute-optimal parameters and tokens against compute", _lettered("b", growth), HEIGHT),
        Panel("loss", "Lowest loss against compute", _lettered("c", buys), HEIGHT),
    )
    table = frontier.table((*paths, bought), frontier.approach(fit))
    title = "For a paper: the study in one figure"
    return Figure(NAME, title, _caption(fit, bought), panels, table, across=3, shown=False)


def _caption(fit: Fit, bought: Path) -> str:
    """Return the caption that the figure has in a paper: what its panels show, what bars, dashes and marks are."""
    marks = "; ".join(frontier.proposals_in_words(bought.proposed))
    return (
        "(a) Loss against model size at equal compute. (b) Compute-optimal parameters and tokens, and (c) the lowest "
        f"loss, against compute. Bars and bands are {numbers.percent(fit.confidence)} intervals; what lies beyond the "
        f"largest run has a grey ground and dashed lines{f'. In (c) {marks}' if marks else ''}."
    )


def draw_growth(ax: Axes, fit: Fit, paths: Sequence[Path]) -> Axes:
    """Draw N* and D* over compute on shared axes: the recommended law with its band, minima and proposals."""
    style.frame(ax, "compute C [FLOPs]", "optimal N* [parameters], D* [tokens]")
    points = [p for path in paths for p in (*path.observed, *path.proposed[:1])]
    ends = [e for p in points for e in (p.value, *(p.interval or ()))]
    style.log_axis(ax.xaxis, *style.padded([p.flops for p in points], 0.1), numbers.power)
    style.log_axis(ax.yaxis, *style.padded(ends, 0.06), style.parameters)
    frontier.shade_extrapolation(ax, paths[0].data_end)
    for path in paths:
        colour, mark = LOOKS[path.quantity]
        if path.line is not None:
            frontier.draw_line(ax, path.line, path.data_end, "_", colour)
            ax.plot([], [], f"{mark}-", color=colour, ms=6, label=exponent(fit, path.quantity))  # told apart in grey
        for point in path.observed:
            frontier.error(ax, point, point.flops, style.INK)
            ax.plot(point.flops, point.value, mark, ms=6, mfc=colour, mec=style.PAPER, mew=1, zorder=4)
        for point in path.proposed[:1]:
            frontier.error(ax, point, point.flops, colour)
            ax.plot(point.flops, point.value, "*", ms=13, mfc=colour, mec=style.PAPER, mew=1, zorder=6)
    _only_laws(ax)
    style.key(ax, columns=1)
    return ax


def exponent(fit: Fit, quantity: str) -> str:
    """Return how N* or D* grows: "N* ∝ Cᵃ, a = 0.506 (0.495 to 0.518)"."""
    assert fit.recommendation is not None, "something is recommended"
    symbol, raised, letter = SYMBOLS[quantity]
    found = fit.recommendation.growth.get(quantity)
    if found is None:
        return f"{symbol} by the {fit.recommendation.approach}"
    between = numbers.interval(found.interval)
    known = "no interval" if between == numbers.MISSING else between
    return f"{symbol} ∝ C{raised}, {letter} = {numbers.number(found.exponent)} ({known})"


def exponent_of_loss(fit: Fit) -> str:
    """Return the law through the lowest losses with its constants where they are identified, else whose line it is."""
    block = fit.fits.frontier
    known = block.status == "ok" and all(
        name in block.params and (name not in block.identified or block.identified[name].identified)
        for name in ("L_inf", "alpha")
    )
    if not known:
        return "recommended law"
    between = numbers.interval(block.intervals.get("alpha"))
    ends = "" if between == numbers.MISSING else f" ({between})"
    return f"L ≈ {numbers.number(block.params['L_inf'])} + k C⁻ᶜ, c = {numbers.number(block.params['alpha'])}{ends}"


def _only_laws(ax: Axes) -> None:
    """Leave bands and the parts beyond the data out of the key: two of each would say nothing."""
    for artist in (*ax.lines, *ax.collections):
        if artist.get_label() in ("its interval", "beyond the data"):
            artist.set_label("_")


def _lettered(letter: str, draw: Callable[[Axes], Axes]) -> Callable[[Axes], Axes]:
    """Return a panel's drawing with its letter at the upper left."""

    def drawn(ax: Axes) -> Axes:
        draw(ax)
        ax.set_title(letter, loc="left", color=style.INK, fontweight="bold", pad=4)
        return ax

    return drawn
