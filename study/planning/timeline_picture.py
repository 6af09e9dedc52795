"""A pipeline's step as a picture: a row for each rank, a box for each pass, schedules below each other. SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from study.text import percent
from train.spec.pipeline_schedule.orders import Kind
from train.spec.pipeline_schedule.simulation import Timed, Timeline

WIDTH, LEFT, RIGHT = 960, 70, 20
ROW, GAP, TITLE, HEAD, FOOT = 22, 4, 30, 62, 44
LETTER = 6.2
"""Width of a digit at the size of the boxes' text."""
INK, QUIET, IDLE = "#22272e", "#5b6570", "#eceff2"
FILLS = {
    Kind.FORWARD: ("#1f6fa5", "#a9cbe3"),
    Kind.BACKWARD: ("#b85c00", "#f2c08c"),
    Kind.INPUT: ("#b85c00", "#f2c08c"),
    Kind.WEIGHT: ("url(#weight)", "url(#weight-later)"),
}
"""Of a rank's first stage and of its later ones. Gradients of weights are hatched, not told by colour alone."""
WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward: inputs",
    Kind.WEIGHT: "backward: weights",
}
_HATCHES = "".join(
    f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" fill="{ground}"/><rect width="2" height="6" fill="{line}"/></pattern>'
    for name, ground, line in (("weight", "#cfe8dc", "#6fb596"), ("weight-later", "#eef7f2", "#b5d8c7"))
)


@dataclass(frozen=True)
class Lane:
    """One schedule's step and what stands above it."""

    title: str
    timeline: Timeline


def lane(schedule: str, timeline: Timeline, waiting: float) -> Lane:
    """Return a schedule's part of the picture, with its figures as title."""
    said = f"step {timeline.step:.4g} ms, idle {percent(timeline.idle_share, 1)}, {waiting:.4g} kept"
    return Lane(f"{schedule}: {said}", timeline)


def draw(title: str, lanes: Sequence[Lane]) -> str:
    """Return the picture as SVG text; all lanes have one time axis [ms]."""
    longest = max(one.timeline.step for one in lanes)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, top = [], float(HEAD)
    for one in lanes:
        parts.append(_text(LEFT, top + TITLE - 9, one.title, size=13, weight="bold"))
        top += TITLE
        for rank, timed in enumerate(one.timeline.ranks):
            parts.append(_rank(rank, timed, top, scale, one.timeline))
            top += ROW + GAP
    kinds = dict.fromkeys(timed.one.kind for one in lanes for rank in one.timeline.ranks for timed in rank)
    height = top + FOOT
    parts.append(_axis(longest, scale, top + 4))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" role="img" '
        f'aria-label="{escape(title, quote=True)}"><defs>{_HATCHES}</defs>'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
        + _text(LEFT, 22, title, size=15, weight="bold")
        + _key(_merged(list(kinds)), later=_has_later(lanes))
        + "".join(parts)
        + "</svg>\n"
    )


def _rank(rank: int, timed: Sequence[Timed], top: float, scale: float, whole: Timeline) -> str:
    first = min(one.one.stage for one in timed)
    idle = f'<rect x="{LEFT}" y="{top:.1f}" width="{whole.step * scale:.2f}" height="{ROW}" fill="{IDLE}"/>'
    label = _text(LEFT - 8, top + ROW - 7, f"rank {rank}", size=11, anchor="end", fill=QUIET)
    wide = LETTER * len(str(max(one.one.micro_batch for one in timed))) + 3
    shown = {
        kind
        for kind in Kind
        if min((one.end - one.start for each in whole.ranks for one in each if one.one.kind is kind), default=0.0)
        * scale
        >= wide
    }
    boxes = "".join(_box(one, one.one.stage != first, one.one.kind in shown, top, scale) for one in timed)
    return label + idle + boxes


def _box(timed: Timed, later: bool, numbered: bool, top: float, scale: float) -> str:
    """Return the box of a pass; its number is left out where those of all passes of its kind do not fit."""
    x, width = LEFT + timed.start * scale, (timed.end - timed.start) * scale
    one = timed.one
    said = f"{WORDS[one.kind]}, stage {one.stage}, micro-batch {one.micro_batch}: {timed.start:.4g}-{timed.end:.4g} ms"
    box = (
        f'<g><title>{said}</title><rect x="{x:.2f}" y="{top:.1f}" width="{width:.2f}" height="{ROW}" '
        f'fill="{FILLS[one.kind][later]}" stroke="#ffffff" stroke-width="{min(1.0, width / 8):.2f}"/>'
    )
    if numbered:
        fill = INK if later or one.kind is Kind.WEIGHT else "#ffffff"
        box += _text(x + width / 2, top + ROW - 7, str(one.micro_batch), size=10, anchor="middle", fill=fill)
    return box + "</g>"


def _key(kinds: Sequence[Kind], later: bool) -> str:
    """Return what the boxes mean, in a line below the title."""
    x, parts = float(LEFT), []
    entries = [(FILLS[kind][0], _word(kind, kinds)) for kind in kinds]
    entries.append((IDLE, "idle"))
    for fill, word in entries:
        parts.append(f'<rect x="{x:.0f}" y="36" width="14" height="14" fill="{fill}"/>' + _text(x + 19, 47.5, word))
        x += 19 + 6.7 * len(word) + 18
    said = "number: micro-batch" + ("; paler: a rank's later stages" if later else "")
    return "".join(parts) + _text(x, 47.5, said, fill=QUIET)


def _merged(kinds: Sequence[Kind]) -> list[Kind]:
    """Return the kinds without that of inputs where there is the whole backward pass, which has its colour."""
    ordered = [kind for kind in Kind if kind in kinds]
    return [kind for kind in ordered if not (kind is Kind.INPUT and Kind.BACKWARD in ordered)]


def _word(kind: Kind, kinds: Sequence[Kind]) -> str:
    if kind is Kind.BACKWARD and Kind.WEIGHT in kinds:
        return "backward (zb: of inputs)"
    return WORDS[kind]


def _has_later(lanes: Sequence[Lane]) -> bool:
    return any(len({timed.one.stage for timed in rank}) > 1 for one in lanes for rank in one.timeline.ranks)


def _axis(longest: float, scale: float, top: float) -> str:
    """Return the time axis with about ten round ticks."""
    ticks = ticks_of(longest)
    parts = [
        f'<line x1="{LEFT}" x2="{LEFT + longest * scale:.2f}" y1="{top:.1f}" y2="{top:.1f}" stroke="{QUIET}"/>',
        *(
            f'<line x1="{LEFT + t * scale:.2f}" x2="{LEFT + t * scale:.2f}" y1="{top:.1f}" y2="{top + 5:.1f}" '
            f'stroke="{QUIET}"/>' + _text(LEFT + t * scale, top + 18, f"{t:g}", anchor="middle", fill=QUIET)
            for t in ticks
        ),
        _text(LEFT + longest * scale, top + 34, "time [ms]", anchor="end", fill=QUIET),
    ]
    return "".join(parts)


def ticks_of(longest: float) -> list[float]:
    """Return 5 to 13 round numbers from 0 up to the longest time."""
    step = 1e-12
    while longest / step > 12:
        first = f"{step:e}"[0]
        step *= 2.5 if first == "2" else 2.0
    return [round(i * step, 12) for i in range(int(longest / step * (1 + 1e-12)) + 1)]


def _text(
    x: float, y: float, said: str, *, size: int = 11, anchor: str = "start", fill: str = INK, weight: str = "normal"
) -> str:
    extra = "" if weight == "normal" else f' font-weight="{weight}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{extra}>'
        f"{escape(said)}</text>"
    )
