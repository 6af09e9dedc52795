"""A memory sheet as a picture: a bar a variant, its components one after the other, and the memory that there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOTS = 150
"""Resolution of the PNG [dots per inch]."""
RED = "#c23b22"


@dataclass(frozen=True)
class Limit:
    """What a picture is of, and the memory of a GPU [bytes]."""

    title: str
    memory: int


def draw(bars: Mapping[str, Mapping[str, int]], order: Sequence[str], limit: Limit, out: Path) -> list[Path]:
    """Draw bars by name, of parts by component [bytes], as memory.svg and memory.png in `out`; return the files."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 1.6 + 0.36 * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(bars)
    shown = [name for name in order if any(parts.get(name) for parts in bars.values())]
    starts = [0.0] * len(names)
    for number, component in enumerate(shown):
        sizes = [bars[name].get(component, 0) / 1e9 for name in names]
        axes.barh(names, sizes, left=starts, label=component, color=colormaps["tab20"](number % 20), height=0.7)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    axes.axvline(limit.memory / 1e9, color=RED, linewidth=1.2)
    axes.text(limit.memory / 1e9, 1.01, f" {limit.memory / 1e9:g} GB", transform=axes.get_xaxis_transform(), color=RED)
    axes.invert_yaxis()
    axes.set_xlabel("GB on the fullest GPU")
    axes.set_title(limit.title, fontsize=9, loc="left", pad=14)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    found = [out / "memory.svg", out / "memory.png"]
    for path in found:
        figure.savefig(path, format=path.suffix[1:], dpi=DOTS)
    return found
