"""What associations and QOS allow one job, and whether a job is beyond that: then it would wait for ever.

In SLURM's order (resource_limits in its documentation) the partition's QOS, the job's QOS and the association are
asked in turn, and the first that sets a limit decides it; limits of groups hold at every account above. A job is held
against the least that it will be given, so what is refused here could never start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from study.executors.job_spec import JobSpec
from study.executors.slurm.limits import Asked, Association, Limits, Qos, holding

WALL = "time"
UNITS = {"cpu": "core(s)", "gres/gpu": "GPU(s)", "node": "node(s)", "mem": "GB", WALL: "minutes"}
SETTINGS = ("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "time_minutes", "pack")


@dataclass(frozen=True)
class Ceiling:
    """The most of one resource (a key of UNITS) that one job may ask; `what` names the limit for people."""

    resource: str
    most: int
    what: str


def beyond(shape: JobSpec, allowed: Limits) -> str | None:
    """Return why a job of this shape can never start for what accounting allows it, and what would fit. Pure."""
    over = _over(shape, allowed)
    if not over:
        return None
    excess = " and ".join(
        f"{_amount(one.resource, _asks(shape, one.resource))} ({one.what}: at most {_amount(one.resource, one.most)})"
        for one in over
    )
    packed = f" of cluster.pack={shape.pack} points" if shape.pack > 1 else ""
    return f"a job{packed} would ask for {excess}, so it could never start: {_fitting(shape, allowed, over)}"


def ceilings(shape: JobSpec, allowed: Limits) -> list[Ceiling]:
    """Return the most that one job may ask where it asks to be run, as far as anything says it. Pure."""
    counted, levels = _holding(shape, allowed)
    return [*_of_one_job(counted, levels), *_of_groups(counted, levels)]


def jobs_at_once(shape: JobSpec, allowed: Limits) -> int | None:
    """Return how many jobs of this shape may run at once by what all jobs together may use; None: no limit. Pure.

    Limits of nodes are passed over: jobs that share a node use it once.
    """
    groups = [one for one in _of_groups(*_holding(shape, allowed)) if one.resource not in ("node", WALL)]
    return min((one.most // asks for one in groups if (asks := _asks(shape, one.resource))), default=None)


def longest(shape: JobSpec, allowed: Limits) -> int | None:
    """Return the longest time limit that a job may ask [minutes]; None where nothing limits it."""
    return min((one.most for one in ceilings(shape, allowed) if one.resource == WALL), default=None)


def _holding(shape: JobSpec, allowed: Limits) -> tuple[Sequence[Association], Sequence[Qos]]:
    """Return the associations and the QOS that hold for a job where it asks to be run; none if none is enforced."""
    if not allowed.controller.enforced:
        return [], []
    return holding(allowed.accounts, allowed.partitions, Asked(allowed.user, shape.account, shape.partition, shape.qos))


def _of_one_job(counted: Sequence[Association], levels: Sequence[Qos]) -> Iterator[Ceiling]:
    owners: list[tuple[str, Qos | Association]] = [(f"QOS {qos.name}", qos) for qos in levels]
    # What an account above sets, the user's own association says too.
    owners += [(f"the association of {one.user or one.account}", one) for one in counted[:1]]
    yield from _first([(f"MaxTRES of {name}", one.max_tres) for name, one in owners])
    walls = [(f"MaxWall of {name}", {WALL: one.max_wall}) for name, one in owners if one.max_wall is not None]
    yield from _first(walls)


def _of_groups(counted: Sequence[Association], levels: Sequence[Qos]) -> Iterator[Ceiling]:
    yield from _first([(f"MaxTRESPerUser of QOS {qos.name}", qos.user_tres) for qos in levels])
    yield from _first([(f"MaxTRESPerAccount of QOS {qos.name}", qos.account_tres) for qos in levels])
    groups = list(_first([(f"GrpTRES of QOS {qos.name}", qos.group_tres) for qos in levels]))
    yield from groups
    decided = {one.resource for one in groups}
    for one in counted:
        name = f"the association of {one.user}" if one.user else f"account {one.account}"
        yield from (c for c in _first([(f"GrpTRES of {name}", one.group_tres)]) if c.resource not in decided)


def _first(sources: Sequence[tuple[str, Mapping[str, int]]]) -> Iterator[Ceiling]:
    """Yield each resource's limit where it is set first; what we do not ask for is passed over."""
    done = set[str]()
    for what, limits in sources:
        for resource, most in limits.items():
            if resource in UNITS and resource not in done:
                done.add(resource)
                yield Ceiling(resource, most, what)


def _asks(shape: JobSpec, resource: str) -> int:
    """Return the least of a resource that a job of this shape is given."""
    if resource == "mem":
        return round((shape.job_mem_gb or 0.0) * 1024) * shape.nodes
    asked = {"cpu": shape.cores, "gres/gpu": shape.gpus, "node": shape.nodes, WALL: shape.time_minutes}
    return asked[resource]


def _over(shape: JobSpec, allowed: Limits) -> list[Ceiling]:
    """Return the limits that a job of this shape is beyond, the tightest of each resource."""
    over = [one for one in ceilings(shape, allowed) if _asks(shape, one.resource) > one.most]
    tightest = {one.resource: one for one in sorted(over, key=lambda one: -one.most)}
    return [tightest[resource] for resource in UNITS if resource in tightest]


def _amount(resource: str, value: int) -> str:
    return f"{value / 1024 if resource == 'mem' else value:,g} {UNITS[resource]}"


def _fitting(shape: JobSpec, allowed: Limits, over: Sequence[Ceiling]) -> str:
    """Return the overrides with which the job would fit."""
    for pack in range(shape.pack - 1, 0, -1):
        if not _over(replace(shape, pack=pack), allowed):
            return f"cluster.pack={pack} would fit"
    smaller = replace(shape, pack=1)
    for one in over:
        smaller = _less(smaller, one)
    if _over(smaller, allowed):
        return "request less for one job, or choose another cluster.qos or cluster.account"
    changed = [name for name in SETTINGS if getattr(smaller, name) != getattr(shape, name)]
    fitting = " ".join(f"cluster.{name}={getattr(smaller, name)}" for name in changed)
    return f"{fitting} would fit" + (", and a run that reaches it is resumed" if changed == ["time_minutes"] else "")


def _less(shape: JobSpec, one: Ceiling) -> JobSpec:
    """Return the shape with less of a resource: fewer nodes first, for what a node does is sized for its devices."""
    less: dict[str, Any] = {}
    if one.most < 1:
        return shape  # none at all is another limit's business
    if one.resource == WALL:
        less = {"time_minutes": one.most}
    elif one.resource == "node":
        less = {"nodes": min(shape.nodes, one.most)}
    elif one.resource == "mem":
        less = {"mem_gb": max(1, one.most // 1024 // shape.nodes)}
    elif (each := _asks(shape, one.resource) // shape.nodes) <= one.most:
        less = {"nodes": one.most // each}
    elif one.resource == "gres/gpu":
        tasks = one.most if shape.tasks_per_node == shape.gpus_per_node else shape.tasks_per_node
        less = {"nodes": 1, "gpus_per_node": one.most, "tasks_per_node": tasks}
    else:
        tasks = min(shape.tasks_per_node, one.most)
        less = {"nodes": 1, "tasks_per_node": tasks, "cpus_per_task": max(1, one.most // tasks)}
    return replace(shape, **less)
