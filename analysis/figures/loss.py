"""L(C): the lowest loss that a budget buys, with the law along the frontier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analysis import human
from analysis.figures import frontier, style
from analysis.figures.canvas import Figure, Panel
from analysis.figures.frontier import Line, Path, Point
from analysis.results import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare(fit: Fit) -> Path:
    """Return the loss along the frontier, with intervals of the valleys' minima where they have them."""
    block = fit.fits.frontier
    bounds = {valley.flops: valley.loss_interval for valley in fit.fits.valleys.valleys}
    observed = tuple(Point(p.flops, p.loss, bounds.get(p.flops)) for p in sorted(block.points, key=lambda p: p.flops))
    proposed = frontier.proposals(fit, "loss")
    compute = [p.flops for p in (*observed, *proposed)]
    line = None
    if block.status == "ok" and block.reference_flops and compute:
        line = _sample(block.params, block.reference_flops, min(compute) / 1.2, max(compute) * 1.2)
    return Path("loss", observed, line, proposed, max((p.flops for p in observed), default=math.nan))


def figure(fit: Fit) -> Figure | None:
    """Return the figure, or None where there is no point on the frontier."""
    path = prepare(fit)
    if not path.observed:
        return None
    panel = Panel(
        "loss",
        "Lowest loss against compute with the fitted law",
        lambda ax: draw(ax, path, fit.kinds.loss),
    )
    return Figure("loss", "What compute buys", _caption(fit), (panel,), frontier.table((path,)))


def draw(ax: Axes, path: Path, loss_unit: str) -> Axes:
    """Draw the lowest losses, the law through them and what it promises at the new budget."""
    style.frame(ax, "compute C [FLOPs]", f"lowest validation loss [{loss_unit}]")
    compute = [p.flops for p in (*path.observed, *path.proposed)]
    ends = [e for p in (*path.observed, *path.proposed) for e in (p.value, *(p.interval or ()))]
    style.log_axis(ax.xaxis, *style.padded(compute, 0.1), human.power)
    room = max((max(ends) - min(ends)) * 0.12, 1e-3)
    ax.set_ylim(min(ends) - room, max(ends) + room)
    frontier.shade_extrapolation(ax, path.data_end, top=True)
    if path.line is not None:
        frontier.draw_line(ax, path.line, path.data_end)
    frontier.draw_points(ax, path.observed, path.proposed)
    ax.legend(loc="lower left", frameon=False, labelcolor=style.INK, handletextpad=0.4, borderaxespad=0.2)
    return ax


def _sample(params: dict[str, float], reference: float, low: float, high: float, samples: int = 80) -> Line | None:
    if not {"L_inf", "a", "alpha"} <= params.keys():
        return None
    flops = [low * (high / low) ** (i / (samples - 1)) for i in range(samples)]
    value = [params["L_inf"] + params["a"] * (c / reference) ** -params["alpha"] for c in flops]
    return Line(tuple(flops), tuple(value))


def _caption(fit: Fit) -> str:
    block = fit.fits.frontier
    if block.status != "ok":
        return f"The dots are the {block.points_are}; no law goes through them: {block.reason}."
    text = f"The dots are the {block.points_are}, with their intervals; the law through them is dashed beyond the data"
    floor = block.identified.get("L_inf")
    if floor is not None and not floor.identified:
        text += ". These budgets cannot pin down the floor it falls to, so trust it near the data only"
    return text + "."
