"""The table of points that is shown before anything runs: sizes, tokens, compute and the time it may take."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from study import lineage
from study.config import ClusterConfig
from study.executors.local import slot_count
from study.layout import StudyFolder
from study.point import Point
from study.units import counted, estimate, human, percent, recognised
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token, params

if TYPE_CHECKING:
    from rich.table import Table

FULL_ROWS = 40
WIDE = 140
FROM = {
    "key": 0, "state": 0, "shape": 72, "N matmul": 66, "N total": 95, "D tokens": 50, "D/N": 72, "C FLOPs": 72,
    "time": 0,
}  # fmt: skip
"""The columns of a point, and how many columns the output has at least where they are shown."""
CPU_FLOPS = 2.0e10
GPU_FLOPS = 1.5e14
MAX_MEASURED = 500


@dataclass(frozen=True)
class Row:
    """One point with its counts: N matmul and total parameters, D tokens, C exact FLOPs."""

    point: Point
    state: str
    params: int
    params_total: int
    tokens: int
    flops: float
    own: float
    """What the run spends itself [FLOPs]: a branch does not spend again what its parent did."""

    @property
    def ratio(self) -> float:
        """D/N [tokens per matmul parameter]."""
        return self.tokens / self.params


@dataclass(frozen=True)
class Speed:
    """How fast runs are expected to be, said of one rank: measured (matmul parameters, FLOP/s) pairs, else assumed.

    assumed [FLOP/s]. ranks: how many processes one run has.
    """

    measured: tuple[tuple[int, float], ...]
    assumed: float
    why: str
    ranks: int = 1

    def seconds(self, row: Row) -> float:
        """Return the expected seconds of a run, by the measured runs nearest in size or by the assumption."""
        if not self.measured:
            return row.own / (self.assumed * self.ranks)
        nearest = sorted(self.measured, key=lambda m: abs(math.log(m[0] / row.params)))[:3]
        return row.own / (statistics.median(rate for _, rate in nearest) * self.ranks)


def rows(points: Sequence[Point], states: dict[str, str]) -> list[Row]:
    """Return the points with their counts, in the order given."""
    return [_row(point, states.get(point.key, "new")) for point in points]


def speed(folder: StudyFolder, config: RunConfig, cluster: ClusterConfig) -> Speed:
    """Return the speed measured by the study's finished runs on the same kind of device, else an assumption."""
    gpu = on_gpu(config, cluster)
    ranks = max(1, cluster.nodes * (cluster.gpus_per_node if gpu else cluster.tasks_per_node))
    measured = _measured(folder, "cuda" if gpu else "cpu")
    if measured:
        return Speed(measured, 0.0, f"as measured by {len(measured)} finished runs of this study", ranks)
    unit, each = ("GPU", GPU_FLOPS) if gpu else ("core", CPU_FLOPS)
    rate = each * (1 if gpu else max(1, config.runtime.threads))
    return Speed((), rate, f"assuming {each:.1e} FLOP/s a {unit}, until a run of this study has been timed", ranks)


def on_gpu(config: RunConfig, cluster: ClusterConfig) -> bool:
    """Return whether a run is expected to find a GPU where the cluster section sends it."""
    return config.runtime.device == "cuda" or (config.runtime.device == "auto" and cluster.gpus_per_node > 0)


def slots(cluster: ClusterConfig, config: RunConfig) -> int:
    """Return how many runs are executed at once at most."""
    if cluster.executor == "slurm":
        return cluster.array_parallelism * cluster.pack
    return slot_count(cluster, [config])


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
    varying = _varying([row.point.overrides for row in rows])
    names = [name for name, least in FROM.items() if width >= least]
    for name in names:
        shown.add_column(name, justify="left" if name in ("key", "state", "shape") else "right", no_wrap=True)
    if varying:
        shown.add_column("overrides", overflow="fold")
    for row, took in zip(rows, seconds, strict=True):
        model = row.point.config.model
        cells = {
            "key": row.point.key, "state": row.state, "shape": f"{model.width} x {model.layers}",
            "N matmul": human(row.params), "N total": human(row.params_total), "D tokens": human(row.tokens),
            "D/N": f"{row.ratio:.3g}", "C FLOPs": f"{row.flops:.2e}", "time": estimate(took),
        }  # fmt: skip
        shown.add_row(
            *(cells[name] for name in names),
            *([recognised(o for o in row.point.overrides if o in varying)] if varying else []),
        )


def _condensed(shown: Table, rows: Sequence[Row], seconds: Sequence[float]) -> None:
    groups: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row, took in zip(rows, seconds, strict=True):
        budget = row.point.config.budget.flops
        groups[f"{budget:.2g} FLOPs" if budget is not None else f"N = {human(row.params)}"].append((row, took))
    for name in ("points", "count", "new", "N matmul", "D tokens", "D/N", "C FLOPs", "time of all"):
        shown.add_column(name, justify="left" if name == "points" else "right", no_wrap=True)
    for name, group in groups.items():
        inside = [row for row, _ in group]
        new = sum(row.state == "new" for row in inside)
        cells = [name, str(len(inside)), str(new), _span([r.params for r in inside]), _span([r.tokens for r in inside])]
        cells.append(_span([r.ratio for r in inside]))
        shown.add_row(*cells, f"{sum(r.flops for r in inside):.2e}", estimate(sum(took for _, took in group)))


def _caption(rows: Sequence[Row], seconds: Sequence[float], wall: float, at_once: int, speed: Speed) -> str:
    flops, tokens = sum(r.own for r in rows), sum(lineage.own_tokens(r.point.config) for r in rows)
    left = sum(s for s, r in zip(seconds, rows, strict=True) if r.state != "completed")
    text = f"{counted(len(rows), 'point')}: {flops:.2e} FLOPs, {human(tokens)} tokens, "
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
    compared = f"{percent(abs(share))} {'less' if share >= 0 else 'more'} than the {apart:.2e} of {runs} separate runs"
    return f" Branches share their trunk: {spent:.2e} FLOPs, {compared}."


def _varying(overrides: Sequence[Sequence[str]]) -> set[str]:
    """Return the overrides that tell points apart and that the other columns do not show."""
    if not overrides:
        return set()
    shared = set.intersection(*(set(o) for o in overrides))
    shown = ("model.width=", "model.layers=", "budget.flops=")
    return {o for given in overrides for o in given if o not in shared and not o.startswith(shown)}


def _row(point: Point, state: str) -> Row:
    config = point.config
    counts = params(config.model, config.data.vocab_size)
    tokens = config.budget.tokens
    assert tokens is not None, "a frozen config says its tokens"
    each = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
    flops = float(tokens) * each
    return Row(point, state, counts.matmul, counts.total, tokens, flops, lineage.own_flops(config))


def _measured(folder: StudyFolder, device: str) -> tuple[tuple[int, float], ...]:
    pairs = []
    for path in sorted(folder.path.glob("*/outcome.json"))[:MAX_MEASURED]:
        try:
            outcome = json.loads(path.read_text())
            took, ran_on = float(outcome["seconds"]["total"]), str(outcome.get("device", ""))
            if outcome["state"] == "completed" and took > 0 and ran_on.startswith(device):
                own = float(outcome.get("flops_own", outcome["flops"]))
                each = own / took / max(1, int(outcome.get("world_size", 1)))
                pairs.append((int(outcome["params"]["matmul"]), each))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return tuple(pairs)


def _span(values: Sequence[float]) -> str:
    low, high = human(min(values)), human(max(values))
    return low if low == high else f"{low} … {high}"
