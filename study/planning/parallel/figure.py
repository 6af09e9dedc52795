"""The listed layouts as a picture: a bar a layout, its predicted step by what it goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.report.figures.style import BLUE, GREEN, MUTED, ORANGE, PINK

DOTS = 150
"""Resolution of the PNG [dots per inch]."""
COLOURS = (BLUE, MUTED, ORANGE, PINK, GREEN)
"""Of computing, launches, messages, the bubble and the update, as in the picture of a step."""
HAIRLINE = 1e-3
"""The smallest part that the legend names, as a share of the longest bar: about a pixel."""
WIDTH = 9.0
"""Of the picture [inches]."""


def draw(
    bars: Sequence[tuple[str, Mapping[str, float]]], title: str, out: Path, marks: Mapping[int, float]
) -> list[Path]:
    """Draw named bars of parts [s], the first on top, as parallel.svg and parallel.png in `out`; return the files.

    marks: what was measured of some [s], by place from 1.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 1.4 + 0.5 * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = [str(place) for place in range(1, len(bars) + 1)]
    starts, longest = [0.0] * len(bars), max(sum(parts.values()) for _, parts in bars)
    for part, colour in zip(bars[0][1], COLOURS, strict=True):
        sizes = [1e3 * parts[part] for _, parts in bars]
        seen = any(parts[part] >= HAIRLINE * longest for _, parts in bars)
        axes.barh(places, sizes, left=starts, label=part if seen else None, color=colour, height=0.45)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for place, (name, _) in enumerate(bars):
        clear_of_axis: Any = {"xytext": (3, 0), "textcoords": "offset points"}
        axes.annotate(name, (0, place - 0.27), fontsize=7, va="bottom", annotation_clip=False, **clear_of_axis)
    most = max([*starts, *(1e3 * value for value in marks.values())])
    for place, whole in enumerate(starts):
        beyond = max(whole, 1e3 * marks.get(place + 1, 0.0))
        axes.annotate(_written(whole), (beyond + 0.012 * most, place), fontsize=8, va="center", annotation_clip=False)
    axes.set_xlim(0.0, 1.1 * most)
    if marks:
        at, taken = [place - 1 for place in marks], [1e3 * value for value in marks.values()]
        axes.plot(taken, at, "|", color="black", markersize=16, markeredgewidth=2, label="measured")
    axes.set_ylim(len(bars) - 0.5, -0.8)
    axes.set_xlabel("predicted time of a step [ms]" if not marks else "time of a step, predicted and measured [ms]")
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.legend(fontsize=7, loc="outside lower center", ncols=len(COLOURS) + bool(marks), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    found = [out / "parallel.svg", out / "parallel.png"]
    with mpl.rc_context({"svg.fonttype": "none"}):
        for path in found:
            figure.savefig(path, format=path.suffix[1:], dpi=DOTS)
    return found


def _written(milliseconds: float) -> str:
    """Return a time beside its bar, to four digits, so that neighbours differ."""
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.4g}"
