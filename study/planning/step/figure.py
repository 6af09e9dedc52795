"""A step's time as a picture: a bar for each part, in the colour of what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.report.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PINK, frame, rc
from study.planning.step.words import LIMITS

DOTS = 150
"""Resolution of the PNG [dots per inch]."""
COLOURS = dict(zip(LIMITS, (BLUE, GREEN, ORANGE, MUTED, PINK), strict=True))


def draw(parts: Sequence[tuple[str, float, str]], title: str, out: Path) -> list[Path]:
    """Draw parts with their seconds and limits, the first on top, as step.svg and step.png in `out`."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    settings: Any = rc()
    with mpl.rc_context(settings):
        figure = Figure(figsize=(8.0, 1.4 + 0.3 * len(parts)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = frame(figure.subplots(), "predicted time [ms]", "")
        times = [1e3 * value for _, value, _ in parts]
        bars = axes.barh([name for name, _, _ in parts], times, color=[COLOURS[limit] for _, _, limit in parts])
        axes.bar_label(bars, [f"{time:,.1f}" for time in times], padding=3, fontsize="small", color=INK)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.margins(x=0.1)
        shown = [limit for limit in LIMITS if any(limit == one for _, _, one in parts)]
        figure.legend(
            [Patch(color=COLOURS[limit]) for limit in shown], shown, loc="outside lower center", ncols=len(shown),
            frameon=False, labelcolor=INK,
        )  # fmt: skip
        figure.suptitle(title, fontsize="small", x=0.01, ha="left", color=INK)
        found = [out / "step.svg", out / "step.png"]
        for path in found:
            figure.savefig(path, format=path.suffix[1:], dpi=DOTS)
    return found
