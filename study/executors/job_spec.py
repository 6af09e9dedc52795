"""What one job asks of SLURM, as a value: decided from the config or sized from a point, recorded in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from study.config.given import check_auto, parts
from study.config.schema import ClusterConfig

OURS: Mapping[str, str] = {
    "array": "a list after -m",
    "chdir": "paths.runs",
    "dependency": "a point's parent",
    "error": "the run folders",
    "export": "cluster.setup",
    "job-name": "study.name",
    "ntasks": "cluster.tasks_per_node",
    "open-mode": "nothing: logs are appended to",
    "output": "the run folders",
    "requeue": "cluster.requeue",
    "no-requeue": "cluster.requeue",
    "signal": "cluster.signal_seconds",
    "wait": "wait=true",
    "wrap": "nothing",
    **{
        name.replace("_", "-"): f"cluster.{name}"
        for name in ("nodes", "cpus_per_task", "gpus_per_node", "partition", "account", "qos", "constraint", "exclude")
    },
    "ntasks-per-node": "cluster.tasks_per_node",
    "mem": "cluster.mem_gb",
    "time": "cluster.time_minutes",
    "nice": "cluster.nice",
    "reservation": "cluster.reservation",
}
"""sbatch options that a submission sets itself, and what says them."""


@dataclass(frozen=True)
class JobSpec:
    """What a job asks, said for one point: `pack` points run side by side in a job, which asks for all of them.

    points_per_job: how many a job has in all, one after the other where that is more; None: as many as `pack`.
    nodes, tasks_per_node, cpus_per_task, gpus_per_node, mem_gb [GB a node]: of one point. time_minutes: of the job.
    warm: whether a trainer process stays for the next trial of a search's worker, or the next point of a job.
    code: whether it runs the checkout (`live`) or the copy of its code version (`frozen`).
    dependency: jobs that must have succeeded (`afterok:12_3`). sbatch: further options, as pairs.
    """

    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    mem_gb: float | None = None
    time_minutes: int = 60
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    reservation: str | None = None
    nice: int | None = None
    sbatch: tuple[tuple[str, str], ...] = ()
    container_image: str | None = None
    container_mounts: str | None = None
    prefix: tuple[str, ...] = ()
    python: str | None = None
    code: str = "live"
    setup: tuple[str, ...] = ()
    signal_seconds: int = 90
    master_addr: str | None = None
    pack: int = 1
    pack_gpus: str = "own"
    points_per_job: int | None = None
    requeue: bool = True
    hang_floor_seconds: float = 600.0
    warm: bool = True
    dependency: str | None = None

    @classmethod
    def of(cls, cluster: ClusterConfig) -> JobSpec:
        """Return what a cluster section asks, as it stands. Raises ValueError for what no executor runs."""
        _check(cluster)
        said = {f.name: getattr(cluster, f.name) for f in fields(cls) if f.name not in ("sbatch", "dependency")}
        return cls(**said, sbatch=_options(cluster.sbatch or {}))

    @classmethod
    def read(cls, recorded: Mapping[str, Any]) -> JobSpec:
        """Return the shape that :meth:`record` wrote; what an older ledger does not say, or null, is as by default."""
        values = {f.name: recorded[f.name] for f in fields(cls) if recorded.get(f.name) is not None}
        for name in ("prefix", "setup"):
            values[name] = tuple(values.get(name, ()))
        values["sbatch"] = tuple((str(name), str(value)) for name, value in values.get("sbatch", ()))
        return cls(**values)

    def record(self) -> dict[str, Any]:
        """Return what the ledger records of it as JSON: without what is not set."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {name: value for name, value in said.items() if value not in (None, ())}
        return {name: list(map(_plain, value)) if isinstance(value, tuple) else value for name, value in kept.items()}

    @property
    def tasks(self) -> int:
        """Processes of one point."""
        return self.nodes * self.tasks_per_node

    @property
    def points(self) -> int:
        """Points of one job."""
        return self.points_per_job or self.pack

    @property
    def takes_turns(self) -> bool:
        """Whether points of one job follow each other."""
        return self.points > self.pack

    @property
    def job_cpus_per_task(self) -> int:
        """Cores of each task of the job; those of all that run side by side, for one task starts them."""
        return self.cpus_per_task * self.pack

    @property
    def job_gpus_per_node(self) -> int:
        """GPUs of the job on each node: of all that run side by side, unless they share."""
        return self.gpus_per_node * (self.pack if self.pack_gpus == "own" else 1)

    @property
    def job_mem_gb(self) -> float | None:
        """Memory of the job on each node [GB]."""
        return None if self.mem_gb is None else self.mem_gb * self.pack

    @property
    def gpus(self) -> int:
        """GPUs of a whole job."""
        return self.nodes * self.job_gpus_per_node

    @property
    def cores(self) -> int:
        """Cores of a whole job."""
        return self.tasks * self.job_cpus_per_task

    @property
    def hours(self) -> float:
        """The time limit [h]."""
        return self.time_minutes / 60

    def jobs(self, points: int) -> int:
        """Return how many jobs this many points are."""
        return -(-points // self.points)


def _check(cluster: ClusterConfig) -> None:
    for name in ("nodes", "tasks_per_node", "cpus_per_task", "time_minutes", "pack"):
        if getattr(cluster, name) < 1:
            raise ValueError(f"cluster.{name}={getattr(cluster, name)} is not allowed: 1 or more")
    if cluster.gpus_per_node < 0:
        raise ValueError(f"cluster.gpus_per_node={cluster.gpus_per_node} is not allowed: 0 or more")
    if cluster.margin < 1:
        raise ValueError(f"cluster.margin={cluster.margin:g} is not allowed: 1 or more; 1.5 requests 50 % more")
    check_auto(cluster.auto)
    given = cluster.points_per_job
    if given is not None and given < cluster.pack:
        raise ValueError(
            f"cluster.points_per_job={given} is not allowed: cluster.pack={cluster.pack} of them run side by side, so "
            f"it takes {cluster.pack} or more, or null"
        )
    several = "pack" if cluster.pack > 1 else "points_per_job"
    if (getattr(cluster, several) or 1) == 1:
        return
    if (cluster.nodes, cluster.tasks_per_node) != (1, 1):
        raise ValueError(
            f"cluster.{several}={getattr(cluster, several)} needs points of one process, not "
            f"cluster.nodes={cluster.nodes} x cluster.tasks_per_node={cluster.tasks_per_node}: set both to 1, or "
            f"cluster.{several}=1"
        )
    if cluster.pack_gpus != "own" and not cluster.gpus_per_node and "gpus" not in parts(cluster):
        raise ValueError(
            f"cluster.pack_gpus={cluster.pack_gpus} without GPUs: give cluster.gpus_per_node, or leave it own"
        )


def _options(sbatch: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return further sbatch options as sorted pairs; a flag has the value ''. ValueError for one that is ours."""
    options = {}
    for given, value in sbatch.items():
        name = str(given).lstrip("-").replace("_", "-")
        if name in OURS:
            raise ValueError(f"cluster.sbatch has {given!r}, which a submission sets itself: use {OURS[name]}")
        if isinstance(value, dict | list | tuple):
            raise ValueError(f"cluster.sbatch.{given}={value!r} is not allowed: text, a number, or true for a flag")
        if value is not None and value is not False:
            options[name] = "" if value is True else str(value)
    return tuple(sorted(options.items()))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
