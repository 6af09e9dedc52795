"""L(C): the lowest loss that a budget buys, with the law along the frontier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.figures import frontier, style
from analysis.report.figures.canvas import Figure, Panel, Table
from analysis.report.figures.frontier import Line, Path, Point
from analysis.text import numbers
from analysis.values.blocks import Frontier
from analysis.values.study_result import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def prepare(fit: Fit) -> Path:
    """Return the lowest losses with their intervals, and the loss along the recommended law's path.

    Without a recommendation the law through the lowest losses is the line, where it is identified.
    """
    block = fit.fits.frontier
    bounds = {valley.flops: valley.loss_interval for valley in fit.fits.valleys.valleys}
    observed = tuple(Point(p.flops, p.loss, bounds.get(p.flops)) for p in sorted(block.points, key=lambda p: p.flops))
    proposed = frontier.proposals(fit, "loss")
    line = frontier.followed(fit, "loss")
    if line is None and block.status == "ok" and block.reference_flops and _known(block):
        compute = [p.flops for p in (*observed, *proposed)]
        line = _sample(block.params, block.reference_flops, min(compute) / 1.2, max(compute) * 1.2)
    return Path("loss", observed, line, proposed, frontier.data_end(fit))


def _known(block: Frontier) -> bool:
    """Return whether the law through the lowest losses is identified: else it is not drawn."""
    verdict = block.identified.get("alpha")
    return verdict is None or verdict.identified


def figure(fit: Fit) -> Figure | None:
    """Return the figure, or None where there is no point on the frontier."""
    path = prepare(fit)
    if not path.observed:
        return None
    name = "recommended law" if frontier.followed(fit, "loss") is not None else "law through the dots"
    panel = Panel(
        "loss",
        "Lowest loss against compute",
        lambda ax: draw(ax, path, fit.kinds.loss, fit.fits.frontier.points_are, name),
        height=4.4,
    )
    return Figure("loss", "What compute buys", _caption(fit, path), (panel,), _table(fit, path))


def draw(
    ax: Axes,
    path: Path,
    loss_unit: str,
    what: str = "minima of the valleys",
    name: str = "recommended law",
) -> Axes:
    """Draw the lowest losses, the law through them and what it promises at the new budget."""
    style.frame(ax, "compute C [FLOPs]", f"lowest loss [{loss_unit}]")
    compute = [p.flops for p in (*path.observed, *path.proposed)]
    ends = [e for p in (*path.observed, *path.proposed) for e in (p.value, *(p.interval or ()))]
    style.log_axis(ax.xaxis, *style.padded(compute, 0.1), numbers.power)
    room = max((max(ends) - min(ends)) * 0.12, 1e-3)
    ax.set_ylim(min(ends) - room, max(ends) + room)
    frontier.shade_extrapolation(ax, path.data_end)
    if path.line is not None:
        frontier.draw_line(ax, path.line, path.data_end, name)
    frontier.draw_points(ax, path.observed, path.proposed, what)
    style.key(ax, columns=2)
    return ax


def _sample(params: dict[str, float], reference: float, low: float, high: float, samples: int = 80) -> Line | None:
    if not {"L_inf", "a", "alpha"} <= params.keys():
        return None
    flops = [low * (high / low) ** (i / (samples - 1)) for i in range(samples)]
    value = [params["L_inf"] + params["a"] * (c / reference) ** -params["alpha"] for c in flops]
    return Line(tuple(flops), tuple(value))


def _table(fit: Fit, path: Path) -> Table:
    followed = frontier.followed(fit, "loss") is not None
    return frontier.table((path,), frontier.approach(fit) if followed else "frontier")


def _caption(fit: Fit, drawn: Path) -> str:
    """Return what is drawn: the lowest losses, and the loss along the recommended law's path or through the dots."""
    block, plan = fit.fits.frontier, fit.recommendation
    text = f"The dots are the {block.points_are}"
    if drawn.line is None:
        why = block.reason or next((v.reason for v in block.identified.values() if not v.identified), "")
        text += f"; no law is drawn through them{f': {why}' if why else ''}"
        return "; ".join([text, *frontier.proposals_in_words(drawn.proposed)]) + "."
    if plan is not None and frontier.followed(fit, "loss") is not None:
        source = plan.loss_from or plan.approach
        text += f"; the line is the loss along the recommended law's path, by the {source}"
    else:
        text += "; the line is the law through them"
    text += ", dashed beyond the data" if drawn.line.flops[-1] > drawn.data_end else ""
    return "; ".join([text, *frontier.proposals_in_words(drawn.proposed)]) + "."
