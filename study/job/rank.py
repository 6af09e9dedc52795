"""Where in a job a process stands: job id, restart, rank, nodes; and the address at which its ranks meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

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


def memory_gb(environment: Mapping[str, str]) -> float | None:
    """Return the memory that SLURM gave this job on each of its nodes [GB]; None where it does not say."""
    node, cpu = environment.get("SLURM_MEM_PER_NODE", ""), environment.get("SLURM_MEM_PER_CPU", "")
    cores = environment.get("SLURM_CPUS_ON_NODE", "")
    if node.isdigit() and int(node):
        return round(int(node) / 1024, 3)
    return round(int(cpu) * int(cores) / 1024, 3) if cpu.isdigit() and cores.isdigit() else None


def own_address() -> str:
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
