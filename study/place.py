"""Where in a job a process stands: job id, restart, rank, nodes; and the address at which its ranks meet."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from train.spec.mesh import NAMES as AXES

FIRST_PORT, PORTS = 20000, 12000
"""Rendezvous ports: below the kernel's ephemeral range, which starts at 32768."""


@dataclass(frozen=True)
class Place:
    """One process of a job. `restart` counts the requeues of the same job id."""

    executor: str
    job_id: str
    restart: int = 0
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    nodes: tuple[str, ...] = ()

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0


def local_world(parallel: Mapping[str, Any], tasks: int = 1) -> int:
    """Return how many processes a run on this machine gets: as many as asked for, or as its mesh's sizes need."""
    needed = math.prod(parallel.get(axis) or 1 for axis in AXES)
    return int(max(tasks, needed))


def find_place(executor: str, environment: Mapping[str, str], world: int = 1) -> Place:
    """Return this process's place: from SLURM's variables in a SLURM batch, else on this host.

    There it stands for all `world` ranks of a local run, which it starts itself.
    """
    if executor != "slurm":
        return Place(executor, f"local-{os.getpid()}", world=world, nodes=(socket.gethostname(),))
    job = environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID", "0")
    task = environment.get("SLURM_ARRAY_TASK_ID")
    return Place(
        executor,
        job if task is None else f"{job}_{task}",
        restart=int(environment.get("SLURM_RESTART_COUNT", "0")),
        rank=int(environment.get("SLURM_PROCID", "0")),
        world=int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")),
        local_rank=int(environment.get("SLURM_LOCALID", "0")),
        nodes=_nodes(environment.get("SLURM_JOB_NODELIST", "")),
    )


def rendezvous(place: Place, address: str | None, again: int = 0) -> tuple[str, int]:
    """Return the address and a port that is free on this host, derived from the job id. For the first rank.

    `again`: how many ports of this attempt were taken before its ranks could meet there.
    """
    numbers = re.findall(r"\d+", place.job_id)
    start = sum(int(n) * factor for n, factor in zip(numbers, (17, 1), strict=False))
    return address or _own_address(), first_free(start + 7919 * place.restart + 101 * again, _is_free)


def memory_gb(environment: Mapping[str, str]) -> float | None:
    """Return the memory that SLURM gave this job on each of its nodes [GB]; None where it does not say."""
    node, cpu = environment.get("SLURM_MEM_PER_NODE", ""), environment.get("SLURM_MEM_PER_CPU", "")
    cores = environment.get("SLURM_CPUS_ON_NODE", "")
    if node.isdigit() and int(node):
        return round(int(node) / 1024, 3)
    return round(int(cpu) * int(cores) / 1024, 3) if cpu.isdigit() and cores.isdigit() else None


def first_free(start: int, is_free: Callable[[int], bool]) -> int:
    """Return the first free port from `start` on, going round the range. Raises OSError where there is none."""
    for step in range(PORTS):
        port = FIRST_PORT + (start + step) % PORTS
        if is_free(port):
            return port
    raise OSError(f"no free port between {FIRST_PORT} and {FIRST_PORT + PORTS} on {socket.gethostname()}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _own_address() -> str:
    """Return an address at which other nodes reach this host; Debian's 127.0.1.1 for the own name is not one."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    if not address.startswith("127."):
        return address
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return str(entry.address)
    return address


def _nodes(text: str) -> tuple[str, ...]:
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    from submitit.slurm.slurm import SlurmJobEnvironment

    return tuple(SlurmJobEnvironment().hostnames)
