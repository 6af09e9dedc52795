"""A memory sheet as a picture: a bar a variant, its components one after the other, and the memory that there is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from analysis.report.figures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PINK, SMALL, frame, rc

DOTS = 150
"""Resolution of the PNG [dots per inch]."""
GROUPS = {
    "copies": ("casts", "gathered", "gradient buffers"),
    "activations": ("activations", "recomputed block", "block at work", "prompt at work"),
    "logits and head": ("logits", "head", "logits and streams"),
    "messages, update": ("messages", "update", "workspaces"),
    "margin, context, NCCL": ("margin", "context", "NCCL"),
}
"""Components that have one colour together; all others have one each."""
HAIRLINE = 1e-3
"""The smallest part that the legend names, as a share of the axis: about a pixel."""
BESIDE = "margin, context, NCCL"
COLOURS = (BLUE, ORANGE, GREEN, PINK, "#f0d43a", "#4c37a3", "#8a5a2b", "#86cbea")
"""Of what bars consist of, one after the other, no two alike; what is beside the tensors is grey."""


@dataclass(frozen=True)
class Limit:
    """What a picture is of, and the memory of a GPU [bytes]."""

    title: str
    memory: int


def draw(bars: Mapping[str, Mapping[str, int]], order: Sequence[str], limit: Limit, out: Path) -> list[Path]:
    """Draw bars by name, of parts by component [bytes], as memory.svg and memory.png in `out`; return the files."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = {name: grouped(parts) for name, parts in bars.items()}
    shown = [group for group in dict.fromkeys(map(_group, order)) if any(parts.get(group) for parts in drawn.values())]
    named = visible(drawn.values(), shown, limit.memory)
    settings: Any = rc()
    with mpl.rc_context(settings):
        figure = Figure(figsize=(8.0, 2.2 + 0.36 * len(bars)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = frame(figure.subplots(), "GB on the fullest GPU", "")
        names, starts = list(drawn), [0.0] * len(drawn)
        for component, colour in colours(shown).items():
            sizes = [drawn[name].get(component, 0) / 1e9 for name in names]
            drawn_bars = axes.barh(names, sizes, left=starts, color=colour, height=0.7, edgecolor=PAPER, lw=0.4)
            if component in named:
                drawn_bars.set_label(component)
            starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        memory = limit.memory / 1e9
        axes.axvline(memory, color=INK, linewidth=1.2, linestyle="--")
        axes.text(memory, 1.01, f" {memory:g} GB", transform=axes.get_xaxis_transform(), color=INK, fontsize=SMALL)
        axes.grid(False, axis="y")
        axes.invert_yaxis()
        figure.suptitle(limit.title, fontsize=SMALL, x=0.01, ha="left", color=INK)
        if named:
            figure.legend(loc="outside lower center", ncols=4, frameon=False, labelcolor=INK)
        found = [out / "memory.svg", out / "memory.png"]
        for path in found:
            figure.savefig(path, format=path.suffix[1:], dpi=DOTS)
    return found


def visible(bars: Collection[Mapping[str, int]], order: Iterable[str], memory: int) -> list[str]:
    """Return which parts of bars are wide enough to be seen beside a memory [bytes], each once, in their order."""
    least = HAIRLINE * max([memory, *(sum(parts.values()) for parts in bars)])
    return [name for name in dict.fromkeys(order) if any(parts.get(name, 0) >= least for parts in bars)]


def colours(components: Sequence[str]) -> dict[str, str]:
    """Return the colour of each component."""
    free = cycle(COLOURS)
    return {name: MUTED if name == BESIDE else next(free) for name in components}


def grouped(parts: Mapping[str, int]) -> dict[str, int]:
    """Return parts by component as parts by what has one colour in the picture [bytes]."""
    found: dict[str, int] = {}
    for component, size in parts.items():
        group = _group(component)
        found[group] = found.get(group, 0) + size
    return found


def _group(component: str) -> str:
    return next((group for group, members in GROUPS.items() if component in members), component)
