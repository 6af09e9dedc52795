"""What nodes and partitions a cluster has, from one sinfo; and whether a job could ever start on them.

What is not understood is unknown, and nothing is refused for being unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from study.executors.base import Answer, Runner
from study.executors.job_spec import JobSpec
from study.executors.slurm import ceilings, limits, parse_limits, query
from study.failures.retry_policy import is_bad
from study.text import counted

SINFO = ("sinfo", "--noheader", "--exact", "--all", "--format=%P|%D|%c|%m|%G|%f|%l|%s|%T")


@dataclass(frozen=True)
class Nodes:
    """Equal nodes of one partition: how many, and the cores, memory [GB], GPUs and features of each.

    `minutes`, `most`: the partition's time limit [minutes] and nodes of one job; None: no limit. `down`: how many of
    them are down, drained or in maintenance, where no job starts until they come back.
    """

    partition: str
    default: bool
    count: int
    cores: int
    mem_gb: float
    gpus: int
    features: frozenset[str]
    minutes: int | None
    most: int | None
    down: int = 0


@dataclass(frozen=True)
class Site:
    """The nodes of a cluster. `complete`: sinfo answered and every line was understood; `problem`: why not.

    allowed: what the controller, associations and QOS allow, as far as it was asked for (study.executors.slurm.site).
    """

    nodes: tuple[Nodes, ...] = ()
    complete: bool = False
    problem: str = ""
    allowed: limits.Limits = field(default_factory=limits.Limits)

    def of(self, partition: str | None) -> tuple[Nodes, ...]:
        """Return the nodes of these partitions (a comma-separated list), or of the default one."""
        if partition is None:
            return tuple(n for n in self.nodes if n.default)
        names = partition.split(",")
        return tuple(n for n in self.nodes if n.partition in names)

    @property
    def array_limit(self) -> int:
        """Jobs of one array at most; 0: jobs are submitted one by one."""
        return self.allowed.array_limit

    def check(self, shape: JobSpec) -> str | None:
        """Return why a job of this shape can never start, and what would fit; None where it may."""
        return never(shape, self) or ceilings.beyond(shape, self.allowed)

    def gpus_per_node(self, partition: str | None) -> int:
        """Return the most GPUs that a node of a partition has; 0: none, or not known."""
        return max((n.gpus for n in self.of(partition)), default=0)

    def jobs_at_once(self, shape: JobSpec) -> int | None:
        """Return how many jobs of this shape all nodes that they may use hold, if no one else does; None: not known.

        Of several partitions the largest counts, of its nodes those that are neither down nor drained; where all are,
        it is not known. A job of several nodes has all of its nodes in one partition. What the user's associations and
        QOS allow all jobs together bounds the number.
        """
        wanted = _features(shape.constraint)
        if not self.complete or (shape.constraint is not None and wanted is None):
            return None
        places: dict[str, int] = {}
        for nodes in self.of(shape.partition):
            up = nodes.count - nodes.down
            if up and (wanted or frozenset()) <= nodes.features:
                places[nodes.partition] = places.get(nodes.partition, 0) + up * _room(shape, nodes)
        if not places:
            return None
        together = ceilings.jobs_at_once(shape, self.allowed)
        most = max(places.values()) // shape.nodes
        return most if together is None else min(most, together)

    def longest_minutes(self, shape: JobSpec) -> int | None:
        """Return the longest time limit that a job may ask, by its partition, account and QOS [minutes]."""
        most = [limit for limit in (ceilings.longest(shape, self.allowed),) if limit]
        limits = [nodes.minutes for nodes in self.of(shape.partition)]
        known = [limit for limit in limits if limit is not None]
        if self.complete and known and len(known) == len(limits) and shape.qos is None:
            most.append(max(known))  # a QOS may lift a partition's limit
        return min(most, default=None)


def read_nodes(runner: Runner = query.run) -> Site:
    """Ask sinfo once. A cluster that cannot be asked is a site of which nothing is known."""
    return read_site(runner(SINFO))


def read_site(answer: Answer) -> Site:
    """Return the site in sinfo's answer; a line that is not understood makes it incomplete."""
    if answer.code != 0:
        return Site(problem=answer.error or f"sinfo: exit code {answer.code}")
    lines = answer.out.split("\n")
    whole = [line for line in lines[:-1] if line.strip()]
    found = [nodes for line in whole if (nodes := _line(line)) is not None]
    bad = len(whole) - len(found) + bool(lines[-1])
    problem = f"sinfo: {bad} line(s) could not be read" if bad else "" if found else "sinfo: no nodes"
    return Site(_whatever_their_state(found), not problem, problem)


def _whatever_their_state(lines: Sequence[Nodes]) -> tuple[Nodes, ...]:
    """Return equal nodes together, which sinfo lists apart where their states differ."""
    kinds: dict[Nodes, list[Nodes]] = {}
    for nodes in lines:
        kinds.setdefault(replace(nodes, count=0, down=0), []).append(nodes)
    return tuple(
        replace(kind, count=sum(n.count for n in these), down=sum(n.down for n in these))
        for kind, these in kinds.items()
    )


def never(shape: JobSpec, site: Site) -> str | None:
    """Return why a job of this shape can never start at this site, and what would fit; None where it may. Pure."""
    if not site.complete:
        return None
    there = site.of(shape.partition)
    where = f"partition {shape.partition}" if shape.partition else "the default partition"
    if not there:
        names = ", ".join(sorted({n.partition for n in site.nodes}))
        if shape.partition:
            return f"cluster.partition={shape.partition} does not exist here: there are {names}"
        return None
    wanted = _features(shape.constraint)
    if wanted is not None:
        able = tuple(n for n in there if wanted <= n.features)
        if not able:
            known = sorted(set().union(*(n.features for n in there)))
            return (
                f"cluster.constraint={shape.constraint}: no node of {where} has these features: "
                f"they have {', '.join(known) or 'none'}"
            )
        there = able
    return _too_large(shape, there, where) or _too_long(shape, there, where) or _too_many(shape, there, where)


def _room(shape: JobSpec, node: Nodes) -> int:
    """Return how many jobs of this shape a node holds, each with the share of one node."""
    each = [node.cores // (shape.tasks_per_node * shape.job_cpus_per_task)]
    each += [node.gpus // shape.job_gpus_per_node] if shape.job_gpus_per_node else []
    each += [int(node.mem_gb * 1.001 / shape.job_mem_gb)] if shape.job_mem_gb else []
    return min(each)


def _too_large(shape: JobSpec, there: tuple[Nodes, ...], where: str) -> str | None:
    cores = shape.tasks_per_node * shape.job_cpus_per_task
    memory, gpus = shape.job_mem_gb or 0.0, shape.job_gpus_per_node
    if any(n.cores >= cores and n.mem_gb * 1.001 >= memory and n.gpus >= gpus for n in there):
        return None
    largest = max(there, key=lambda n: (n.gpus >= gpus, n.gpus, n.cores, n.mem_gb))
    parts = []
    packed = f" (cluster.pack={shape.pack} points)" if shape.pack > 1 else ""
    if gpus > max(n.gpus for n in there):
        parts.append(f"{gpus} GPUs a node{packed}")
    if cores > max(n.cores for n in there):
        parts.append(f"{cores} cores a node{packed}")
    if memory > max(n.mem_gb for n in there) * 1.001:
        parts.append(f"{memory:g} GB a node{packed}")
    what = " and ".join(parts) or f"{gpus} GPUs, {cores} cores and {memory:g} GB on one node{packed}"
    return (
        f"a job would ask for {what}, more than any node of {where} has, so it could never start: the largest has "
        f"{counted(largest.gpus, 'GPU')}, {counted(largest.cores, 'core')} and "
        f"{largest.mem_gb:.3g} GB: {_fitting(shape, largest)}"
    )


def _fitting(shape: JobSpec, node: Nodes) -> str:
    """Return the overrides with which the job would fit a node."""
    if shape.pack > 1:
        each = [node.cores // shape.cpus_per_task]
        each += [node.gpus // shape.gpus_per_node] if shape.gpus_per_node and shape.pack_gpus == "own" else []
        each += [int(node.mem_gb / shape.mem_gb)] if shape.mem_gb else []
        if min(each) >= 1:
            return f"cluster.pack={min(each)} would fit"
    said = []
    if shape.gpus_per_node > node.gpus:
        if node.gpus and not shape.gpus_per_node % node.gpus:
            said.append(f"cluster.nodes={shape.nodes * shape.gpus_per_node // node.gpus}")
        said.append(f"cluster.gpus_per_node={node.gpus}")
    if shape.tasks_per_node * shape.cpus_per_task > node.cores:
        tasks = min(shape.tasks_per_node, node.cores)
        if tasks != shape.tasks_per_node:
            said.append(f"cluster.tasks_per_node={tasks}")
        said.append(f"cluster.cpus_per_task={max(1, node.cores // tasks)}")
    if (shape.mem_gb or 0) > node.mem_gb:
        said.append(f"cluster.mem_gb={int(node.mem_gb)}")
    return f"{' '.join(said)} would fit" if said else "ask less of one node"


def _too_long(shape: JobSpec, there: tuple[Nodes, ...], where: str) -> str | None:
    if shape.qos is not None or any(n.minutes is None for n in there):
        return None  # a QOS may lift a partition's limit
    most = max(n.minutes or 0 for n in there)
    if shape.time_minutes <= most:
        return None
    return (
        f"cluster.time_minutes={shape.time_minutes} is beyond the {counted(most, 'minute')} that {where} allows, "
        f"so the job could never start: cluster.time_minutes={most} would fit, and a run that reaches it is resumed"
    )


def _too_many(shape: JobSpec, there: tuple[Nodes, ...], where: str) -> str | None:
    counts: dict[str, int] = {}
    for n in there:
        counts[n.partition] = counts.get(n.partition, 0) + n.count
    most = max(min(counts[n.partition], n.most or counts[n.partition]) for n in there)
    if shape.nodes <= most or shape.qos is not None:
        return None
    return f"cluster.nodes={shape.nodes} is more than the {most} nodes that a job gets in {where}: at most {most} fit"


def _features(constraint: str | None) -> frozenset[str] | None:
    """Return the features that all nodes must have; None where the expression says more than that."""
    if constraint is None or not re.fullmatch(r"[\w.\-]+([&,][\w.\-]+)*", constraint):
        return None
    return frozenset(re.split("[&,]", constraint))


def _line(line: str) -> Nodes | None:
    parts = [part.strip() for part in line.split("|")]
    if len(parts) != 9 or not parts[0]:
        return None
    name, count, cores, memory, gres, features, limit, size, state = parts
    try:
        return Nodes(
            partition=name.rstrip("*"),
            default=name.endswith("*"),
            count=int(count),
            cores=int(cores),
            mem_gb=int(memory) / 1024,
            gpus=_gpus(gres),
            features=frozenset() if features == "(null)" else frozenset(features.split(",")),
            minutes=_minutes(limit),
            most=_most(size),
            down=int(count) if is_bad(state) else 0,
        )
    except ValueError:
        return None


def _gpus(gres: str) -> int:
    """Return the GPUs in a node's GRES: `gpu:a100:4(S:0-1),shard:8` has 4."""
    if gres in ("(null)", ""):
        return 0
    return sum(_count(part) for part in re.sub(r"\([^)]*\)", "", gres).split(",") if part.split(":")[0] == "gpu")


def _count(part: str) -> int:
    last = part.rsplit(":", maxsplit=1)[-1]
    return 1 if last == part or not last[:1].isdigit() else int(last)


def _most(size: str) -> int | None:
    last = size.rsplit("-", maxsplit=1)[-1]
    return None if last == "infinite" else int(last)


def _minutes(text: str) -> int | None:
    if text in ("infinite", "UNLIMITED"):
        return None
    said = parse_limits.minutes(text)
    if said is None:
        raise ValueError(f"{text!r} is no time limit")
    return said
