"""Points that go on from another point: in which order they are submitted, and which jobs they wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from study import lineage
from study.ledger import Ledger
from study.point import Point


def split(
    keys: Sequence[str], points: Mapping[str, Point], known: Ledger, completed: Collection[str]
) -> tuple[list[tuple[tuple[str, ...], str | None]], tuple[str, ...]]:
    """Return the keys by the job that they have to wait for, and the keys that cannot be submitted yet. Pure.

    The dependency is sbatch's (`afterok:12_3`), None for points that may start at once. A key must wait here while its
    parent is neither completed nor in a job: the same call after its parent was submitted names that job.
    """
    ready: dict[str | None, list[str]] = {}
    later = []
    for key in keys:
        point = points.get(key)
        parent = lineage.parent_of(point.config) if point is not None else None
        if parent is None or parent.key in completed:
            ready.setdefault(None, []).append(key)
            continue
        batch = known.batch(parent.key)
        if batch is None or batch.job_id is None or batch.executor != "slurm" or parent.key in known.cancelled:
            later.append(key)
            continue
        ready.setdefault(f"afterok:{batch.job_id}_{batch.task(parent.key)}", []).append(key)
    return [(tuple(some), job) for job, some in ready.items()], tuple(later)
