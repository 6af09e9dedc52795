"""The table of points that is shown before anything runs: sizes, tokens, compute and the time it may take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis.text import numbers
from study.config.schema import ClusterConfig
from study.executors import load
from study.failures.kinds import AttemptState
from study.planning.ranks import slot_count
from study.records import lineage
from study.records.point import Point
from study.records.shapes import RUN_OUTCOME
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token, params

CPU_FLOPS = 2.0e10
"""Of a free core: models of 10K to 200K parameters measure 0.3e10 to 0.9e10 where two cores have other work."""
GPU_FLOPS = 1.5e14
MAX_MEASURED = 500


class RowState(StrEnum):
    """What a study knows of a point before it is submitted."""

    NEW = "new"
    KNOWN = "known"
    COMPLETED = "completed"
    DIVERGED = "diverged"


ENDED = (RowState.COMPLETED, RowState.DIVERGED)
"""States of which nothing is left to train."""


@dataclass(frozen=True)
class Row:
    """One point with its counts: N matmul and total parameters, D tokens, C exact FLOPs."""

    point: Point
    state: RowState
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


def rows(points: Sequence[Point], states: Mapping[str, RowState]) -> list[Row]:
    """Return the points with their counts, in the order given."""
    return [_row(point, states.get(point.key, RowState.NEW)) for point in points]


def speed(folder: StudyFolder, config: RunConfig, cluster: ClusterConfig) -> Speed:
    """Return the speed measured by the study's finished runs on the same kind of device, else an assumption."""
    gpu = on_gpu(config, cluster)
    ranks = max(1, cluster.nodes * (cluster.gpus_per_node if gpu else cluster.tasks_per_node))
    measured = _measured(folder, "cuda" if gpu else "cpu")
    if measured:
        by = numbers.counted(len(measured), "finished run")
        return Speed(measured, 0.0, f"as measured by {by} of this study", ranks)
    unit, each = ("GPU", GPU_FLOPS) if gpu else ("core", CPU_FLOPS)
    rate = each * (1 if gpu else max(1, config.runtime.threads))
    slower = "" if gpu else " with nothing else to do (small models on a busy one take up to seven times as long)"
    why = f"assuming {numbers.scientific(each)} FLOP/s a {unit}{slower}, until a run of this study has been timed"
    return Speed((), rate, why, ranks)


def on_gpu(config: RunConfig, cluster: ClusterConfig) -> bool:
    """Return whether a run is expected to find a GPU where the cluster section sends it."""
    return config.runtime.device == "cuda" or (config.runtime.device == "auto" and cluster.gpus_per_node > 0)


def slots(cluster: ClusterConfig, config: RunConfig) -> int:
    """Return how many runs are executed at once at most."""
    if load(cluster.executor).detached:
        return cluster.array_parallelism * cluster.pack
    return slot_count(cluster, [config])


def _row(point: Point, state: RowState) -> Row:
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
        outcome = read_record(path, RUN_OUTCOME) or {}
        took = (outcome.get("seconds") or {}).get("total") or 0.0
        matmul, own = (outcome.get("params") or {}).get("matmul"), outcome.get("flops_own", outcome.get("flops"))
        ran_here = outcome.get("state") == AttemptState.COMPLETED and (outcome.get("device") or "").startswith(device)
        if ran_here and took > 0 and matmul and own:
            devices = max(1, outcome.get("world_size") or 1) * float(outcome.get("gpu_share") or 1)
            pairs.append((int(matmul), own / took / devices))  # of a whole GPU: runs that share one have it in turn
    return tuple(pairs)
