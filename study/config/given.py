"""Resources of jobs that were typed are not sized automatically, though a study's file has `cluster.auto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from study.config.schema import ClusterConfig

AUTO = "cluster.auto"
SIZED: Mapping[str, str] = {
    "cluster.gpus_per_node": "gpus",
    "cluster.mem_gb": "memory",
    "cluster.time_minutes": "time",
    "cluster.pack": "pack",
    "cluster.pack_gpus": "pack",
}
"""Keys by the part of `cluster.auto` that chooses them."""
ALL = "all"
ALL_PARTS = ("gpus", "memory", "time")
"""What `[all]` stands for."""
PARTS = (*ALL_PARTS, "pack", "points_per_job")
"""What `cluster.auto` may name beside `all`."""


def check_auto(auto: Iterable[str]) -> None:
    """Raise ValueError for a word of `cluster.auto` that names nothing which can be sized."""
    unknown = sorted(set(auto) - {*PARTS, ALL})
    if unknown:
        raise ValueError(f"{AUTO}={unknown[0]!r} is not allowed: choose among {', '.join(PARTS)}, or {ALL}")


def parts(cluster: ClusterConfig) -> tuple[str, ...]:
    """Return what `cluster.auto` names, each once, `all` spelled out."""
    named = (*(ALL_PARTS if ALL in cluster.auto else ()), *(part for part in cluster.auto if part != ALL))
    return tuple(dict.fromkeys(named))


def without_given(cluster: ClusterConfig, typed: Iterable[str]) -> ClusterConfig:
    """Return the section in which `auto` leaves the keys of the command line, `typed`, as they were given.

    Where `cluster.auto` was typed as well, it stands. A memory or time limit that it would replace is refused then; a
    number of GPUs is not, as it says that the run is for GPUs.
    """
    keys = set(typed)
    given = {part: name for name, part in SIZED.items() if name in keys}
    named = parts(cluster)
    both = [part for part in named if part in given]
    if not both:
        return cluster
    if AUTO not in keys:
        return replace(cluster, auto=tuple(part for part in named if part not in given))
    for part in both:
        if part != "gpus":
            name = given[part]
            value = getattr(cluster, name.partition(".")[2])
            raise ValueError(f"{AUTO}=[{part}] chooses {name}, which is {value}: leave out one of the two")
    return cluster
