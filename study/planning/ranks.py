"""How many processes a point's run is, and how many of them this machine runs at once. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from train.spec.axes import MESH_AXES
from train.spec.lineage import parse

if TYPE_CHECKING:
    from study.config.schema import ClusterConfig
    from study.records.point import Point
    from train.spec.config import RunConfig


def slot_count(cluster: ClusterConfig, runs: Iterable[RunConfig]) -> int:
    """Return how many runs fit at once: as said, or by `runtime.threads` cores for each process of a run."""
    if cluster.slots is not None:
        if cluster.slots < 1:
            raise ValueError(f"cluster.slots={cluster.slots} is not allowed: it takes 1 or more, or null")
        return cluster.slots
    cores = max((run.runtime.threads * local_world(asdict(run.parallel), tasks(cluster)) for run in runs), default=1)
    return max(1, len(os.sched_getaffinity(0)) // max(1, cores))


def tasks(cluster: ClusterConfig) -> int:
    """Return how many processes of one run the cluster section asks for."""
    return cluster.nodes * cluster.tasks_per_node


def estimated_flops(point: Point) -> float:
    """Return the training FLOPs that a run spends itself, for ordering and for the time left."""
    parent = parse(point.parent)
    return point.flops_per_token * (point.tokens - (0 if parent is None else parent.tokens)) if point.tokens else 0.0


def longest_first(keys: Sequence[str], points: Mapping[str, Point]) -> list[str]:
    """Return the keys by falling compute, so that no long run is left alone at the end; ties keep their order."""
    return sorted(keys, key=lambda key: -estimated_flops(points[key]) if key in points else 0.0)


def local_world(parallel: Mapping[str, Any], tasks: int = 1) -> int:
    """Return how many processes a run on this machine gets: as many as asked for, or as its mesh's sizes need."""
    needed = math.prod(parallel.get(axis) or 1 for axis in MESH_AXES)
    return int(max(tasks, needed))
