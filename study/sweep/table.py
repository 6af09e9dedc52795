"""The table of points that is shown before anything runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.text import numbers
from study.planning.estimate import ENDED, Row, RowState, Speed
from study.records import lineage
from study.text import counted, estimate, human, percent, recognised, varying

if TYPE_CHECKING:
    from rich.table import Table


FULL_ROWS = 40
SHOWN = ("model.width=", "model.layers=", "budget.flops=")
"""Overrides that columns of their own show."""
WIDE = 140
FROM = {
    "key": 0, "state": 0, "shape": 72, "N matmul": 66, "N total": 95, "D tokens": 50, "D/N": 72, "C FLOPs": 72,
    "time": 0,
}  # fmt: skip
"""The columns of a point, and how many columns the output has at least where they are shown."""


def table(rows: Sequence[Row], speed: Speed, at_once: int, title: str, width: int = WIDE) -> Table:
    """Return the table: one row a point, or one row a budget for more than 40 points; where narrow, fewer columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    seconds = [speed.seconds(row) for row in rows]
    wall = max([sum(seconds) / min(at_once, max(1, len(rows))), *seconds], default=0.0)
    caption = _caption(rows, seconds, wall, at_once, speed)
    shown = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    shown.pad_edge, shown.padding = False, (0, 1, 0, 0)
    if len(rows) <= FULL_ROWS:
        _full(shown, rows, seconds, width)
    else:
        _condensed(shown, rows, seconds)
    return shown


def _full(shown: Table, rows: Sequence[Row], seconds: Sequence[float], width: int) -> None:
    told = {o for o in varying([row.point.overrides for row in rows]) if not o.startswith(SHOWN)}
    names = [name for name, least in FROM.items() if width >= least]
    for name in names:
        shown.add_column(name, justify="left" if name in ("key", "state", "shape") else "right", no_wrap=True)
    if told:
        shown.add_column("overrides", overflow="fold")
    for row, took in zip(rows, seconds, strict=True):
        model = row.point.config.model
        cells = {
            "key": row.point.key, "state": row.state, "shape": f"{model.width} x {model.layers}",
            "N matmul": human(row.params), "N total": human(row.params_total), "D tokens": human(row.tokens),
            "D/N": f"{row.ratio:#.3g}".rstrip("."), "C FLOPs": numbers.scientific(row.flops, 3), "time": estimate(took),
        }  # fmt: skip
        shown.add_row(
            *(cells[name] for name in names),
            *([recognised(o for o in row.point.overrides if o in told)] if told else []),
        )


def _condensed(shown: Table, rows: Sequence[Row], seconds: Sequence[float]) -> None:
    groups: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row, took in zip(rows, seconds, strict=True):
        budget = row.point.config.budget.flops
        groups[numbers.flops(budget) if budget is not None else f"N = {human(row.params)}"].append((row, took))
    for name in ("points", "count", "new", "N matmul", "D tokens", "D/N", "C FLOPs", "time of all"):
        shown.add_column(name, justify="left" if name == "points" else "right", no_wrap=True)
    for name, group in groups.items():
        inside = [row for row, _ in group]
        new = sum(row.state == RowState.NEW for row in inside)
        cells = [name, str(len(inside)), str(new), _span([r.params for r in inside]), _span([r.tokens for r in inside])]
        cells.append(_span([r.ratio for r in inside]))
        cells.append(numbers.scientific(sum(r.flops for r in inside), 3))
        shown.add_row(*cells, estimate(sum(took for _, took in group)))


def _caption(rows: Sequence[Row], seconds: Sequence[float], wall: float, at_once: int, speed: Speed) -> str:
    flops, tokens = sum(r.own for r in rows), sum(lineage.own_tokens(r.point.config) for r in rows)
    left = sum(s for s, r in zip(seconds, rows, strict=True) if r.state not in ENDED)
    text = f"{counted(len(rows), 'point')}: {numbers.flops(flops, 3)}, {human(tokens)} tokens, "
    text += f"{estimate(sum(seconds))} of runs"
    if left < sum(seconds):
        text += f" ({estimate(left)} left)"
    return f"{text}; {estimate(wall)} with {min(at_once, len(rows))} at once, {speed.why}.{_shared_trunk(rows)}"


def _shared_trunk(rows: Sequence[Row]) -> str:
    """Return what branching saves against training every budget from the start; "" where nothing branches."""
    trunk = lineage.parents(row.point for row in rows)
    if not trunk:
        return ""
    spent, apart = sum(row.own for row in rows), sum(row.flops for row in rows if row.point.key not in trunk)
    runs = sum(row.point.key not in trunk for row in rows)
    share = 1 - spent / apart
    alone = f"the {numbers.scientific(apart, 3)} of {runs} separate runs"
    compared = f"{percent(abs(share))} {'less' if share >= 0 else 'more'} than {alone}"
    return f" Branches share their trunk: {numbers.flops(spent, 3)}, {compared}."


def _span(values: Sequence[float]) -> str:
    low, high = human(min(values)), human(max(values))
    return low if low == high else f"{low} … {high}"
