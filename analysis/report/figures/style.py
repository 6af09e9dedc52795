"""How all figures look: one palette, log ticks that read as numbers, and no global state.

Colours are near the colour-blind-safe set of Okabe and Ito (2008); those of budgets are analysis.text.colours. Every
colour has a partner for a dark page (:func:`dark`): the report follows the reader's scheme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from analysis.text import numbers
from analysis.text.colours import DARK_RAMP, LIGHT_RAMP, mix

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INK = "#22272e"
PAPER = "#fefefe"
MUTED = "#7d8590"
BLUE = "#2a7fb8"
ORANGE = "#d9730d"
GREEN = "#0f9d76"
PINK = "#c4679b"
_DARK = {MUTED: "#8d96a3", BLUE: "#4aa3de", ORANGE: "#f59a3c", GREEN: "#3fc79d", PINK: "#e08fbb"}
_FINE, _NEAR = 240, 3
"""Places along the sequence that are tried for a colour's partner, and how near one has to be, of 255."""

HOVER = "\u00a6"
"""Begins each name in the id of an artist whose dots have names (:func:`hover`)."""

SMALL = "small"
"""Size of the text that draw functions set themselves: 9 points on a screen, less on a sheet for print (:func:`rc`)."""


def rc(scale: float = 1.0) -> dict[str, Any]:
    """Return the settings that a figure is drawn and saved under, its text `scale` times 10 and 9 points large."""
    return {
        "font.family": ["DejaVu Sans"],
        "font.size": 10.8 * scale,  # of which matplotlib's "small" is 9 points
        "axes.labelsize": 10.0 * scale,
        "axes.titlesize": 11.0 * scale,
        "xtick.labelsize": 9.0 * scale,
        "ytick.labelsize": 9.0 * scale,
        "legend.fontsize": 9.0 * scale,
        "legend.title_fontsize": 9.0 * scale,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
        "text.parse_math": False,
    }


@cache
def dark(colour: str) -> str | None:
    """Return the partner of one of our colours on a dark page; None of any other colour.

    >>> dark(BLUE), dark(LIGHT_RAMP[0]), dark("#123456")
    ('#4aa3de', '#5a42cc', None)
    """
    if colour in _DARK:
        return _DARK[colour]
    place = min(range(_FINE + 1), key=lambda i: _distance(colour, mix(LIGHT_RAMP, i / _FINE)))
    return mix(DARK_RAMP, place / _FINE) if _distance(colour, mix(LIGHT_RAMP, place / _FINE)) <= _NEAR else None


def _distance(a: str, b: str) -> int:
    return max(abs(int(a[i : i + 2], 16) - int(b[i : i + 2], 16)) for i in (1, 3, 5))


def frame(ax: Axes, x: str, y: str, title: str = "") -> Axes:
    """Give axes their labels, a quiet grid and only the two spines that carry ticks."""
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    if title:
        ax.set_title(title, loc="left", color=INK, fontweight="bold", pad=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(which="both", color=MUTED, labelcolor=INK)
    ax.grid(True, which="major", color=MUTED, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.patch.set_visible(False)
    return ax


def key(ax: Axes, columns: int = 3, title: str = "") -> None:
    """Put the key of what is drawn below the axes, where no point is; nothing where nothing has a label."""
    from matplotlib.transforms import ScaledTranslation

    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    below = ax.transAxes + ScaledTranslation(0, -3.6 * _text(ax) / 72, ax.get_figure().dpi_scale_trans)  # type: ignore[union-attr]
    found = ax.legend(
        handles, labels, title=title or None, loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below,
        ncols=_columns(ax, labels, columns), frameon=False, labelcolor=INK, columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    found.get_title().set_color(MUTED)


def _text(ax: Axes) -> float:
    """Return the size of an axis label [points]."""
    return float(ax.xaxis.label.get_fontsize())


def _columns(ax: Axes, labels: Sequence[str], most: int) -> int:
    """Return how many columns of a key fit below axes, at most so many."""
    place = ax.get_subplotspec()
    across = place.get_gridspec().ncols if place is not None else 1
    width = 72 * ax.get_figure().get_size_inches()[0] / across  # type: ignore[union-attr]
    for count in range(min(most, len(labels)), 1, -1):
        rows, longer = divmod(len(labels), count)  # the first columns are longer, where they are not alike
        ends = [(i + 1) * rows + min(i + 1, longer) for i in range(count)]
        widest = [max(map(len, labels[first:end])) for first, end in zip([0, *ends], ends, strict=False)]
        if sum(0.53 * letters + 4 for letters in widest) * 0.9 * _text(ax) <= width:
            return count
    return 1


def hover(artist: Artist, names: Sequence[str]) -> None:
    """Name the dots of an artist, in their order: an SVG then says a dot's name where the pointer rests on it."""
    artist.set_gid(HOVER + HOVER.join(name.replace(HOVER, " ") for name in names))


def log_axis(axis: Any, low: float, high: float, show: Callable[[object], str]) -> None:
    """Make an axis logarithmic from `low` to `high` with 3 to 7 ticks that `show` writes out.

    Decades where they suffice, 1-2-5 steps or finer on short ranges: never an unlabelled axis.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    axis.axes.set_xscale("log") if axis.axis_name == "x" else axis.axes.set_yscale("log")
    (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(low, high)
    axis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(float(value))))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return at least 3 and at most `most` round values between two positive numbers, coarsest that fits."""
    assert 0 < low < high, f"log axis from {low} to {high}"
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    choices: list[list[float]] = []
    for steps in (
        (1.0,),
        (1.0, 3.0),
        (1.0, 2.0, 5.0),
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
        tuple(float(i) for i in range(1, 10)),
    ):
        choices.append([s * 10.0**e for e in range(first, last + 1) for s in steps])
    for step in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        count = round(9 / step)
        choices.append([(1 + i * step) * 10.0**e for e in range(first, last + 1) for i in range(count)])
    inside = [[round(t, 15) if t < 1 else t for t in ticks if low <= t <= high] for ticks in choices]
    fitting = [ticks for ticks in inside if 3 <= len(ticks) <= most]
    if fitting:
        apart = math.log(high / low) / (most + 3)
        roomy = [ticks for ticks in (_apart(ticks, apart) for ticks in fitting) if len(ticks) >= 3]
        return roomy[0] if roomy else fitting[0]
    if len(inside[0]) > most:
        every = math.ceil(len(inside[0]) / most)
        return inside[0][::every]
    return [low, math.sqrt(low * high), high]


def _apart(ticks: list[float], gap: float) -> list[float]:
    """Return the ticks without those nearer than `gap`, in logs, to the next: labels beside a decade would overlap."""
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or math.log(kept[-1] / tick) >= gap:
            kept.append(tick)
    return kept[::-1]


def padded(values: Iterable[float], share: float = 0.06) -> tuple[float, float]:
    """Return limits of a log axis that leave a share of its length free at both ends; one value has a factor 2."""
    known = [v for v in values if math.isfinite(v) and v > 0]
    assert known, "a log axis needs a positive value"
    low, high = math.log(min(known)), math.log(max(known))
    room = max((high - low) * share, 0.05) if high > low else math.log(2.0)
    return math.exp(low - room), math.exp(high + room)


def thinned(count: int, most: int) -> set[int]:
    """Return at most `most` of the indices 0 to count - 1, evenly spaced, both ends included."""
    if count <= most:
        return set(range(count))
    return {round(i * (count - 1) / (most - 1)) for i in range(most)}


def spread(wanted: list[float], gap: float) -> list[float]:
    """Return label positions at least `gap` apart and as near as that allows to the wanted ones, order kept."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # [sum of (wanted - offset), members]; a block is placed at its mean
    for i in order:
        blocks.append([wanted[i], 1.0])
        while len(blocks) > 1:
            (total, size), (next_total, next_size) = blocks[-2], blocks[-1]
            if total / size + size * gap <= next_total / next_size:
                break
            blocks[-2:] = [[total + next_total - next_size * size * gap, size + next_size]]
    places: list[float] = []
    for total, size in blocks:
        places += [total / size + k * gap for k in range(int(size))]
    result = [0.0] * len(wanted)
    for i, place in zip(order, places, strict=True):
        result[i] = place
    return result


def parameters(value: object) -> str:
    """Write a tick of a parameter or token axis: 300k, 1M, 2.5B."""
    return numbers.count(value, 2)
