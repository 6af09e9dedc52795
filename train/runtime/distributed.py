"""Data parallelism by environment: who this process is, and the few things that ranks tell each other."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from train.runtime.console import warn
from train.runtime.gloo import lower_debug_level, use_one_worker

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class World:
    """This process among `size` ranks, which meet at `host` and `port`; a world of one never communicates.

    elastic: torchrun started it, and holds the port.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    elastic: bool = False

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run's files."""
        return self.rank == 0

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return, for each flag, whether any rank raised it; over the CPU, so that a GPU may run ahead."""
        if self.size == 1:
            return list(flags)
        tensor = torch.tensor([float(flag) for flag in flags])
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in tensor.tolist()]

    def least_(self, tensor: Tensor) -> Tensor:
        """Replace a CPU tensor by its elementwise minimum over all ranks and return it."""
        if self.size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        return tensor

    def gather(self, thing: Any) -> list[Any]:
        """Return every rank's thing (small, picklable), in the order of ranks, on every rank."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things


def world_of(env: Mapping[str, str] = os.environ) -> World:
    """Return the world that the environment describes, in torchrun's words (RANK, WORLD_SIZE, LOCAL_RANK) or srun's.

    A process that is one of several tasks of a SLURM step is a rank; a script in an allocation is not.
    """
    if "WORLD_SIZE" not in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        env = _by_srun(env)
    size = int(env.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise ValueError(f"WORLD_SIZE={size} but {', '.join(missing)} not set: start through torchrun or set them")
    rank = int(env["RANK"])
    host, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    return World(rank, size, int(env.get("LOCAL_RANK", rank)), host, port, "TORCHELASTIC_RUN_ID" in env)


def _by_srun(env: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's words for a task that srun started; ranks meet at the first node, where the first task is.

    Not where srun itself runs, which may be a login node.
    """
    job = int(env.get("SLURM_JOB_ID", "0"))
    together = env.get("SLURM_STEP_NUM_NODES", "1") == "1"
    host = env.get("MASTER_ADDR") or ("127.0.0.1" if together else first_host(env["SLURM_STEP_NODELIST"]))
    return {
        "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
        "RANK": env["SLURM_PROCID"],
        "LOCAL_RANK": env.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": host,
        # Below the kernel's ephemeral ports, and another for each step of a job.
        "MASTER_PORT": env.get("MASTER_PORT") or str(20000 + (17 * job + int(env.get("SLURM_STEP_ID", "0"))) % 12000),
    }


def first_host(nodes: str) -> str:
    """Return the first of nodes as SLURM writes them: `n[07-09,12],m1` begins with n07."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return head.partition(",")[0]
    numbers, _, after = rest.partition("]")
    return head + re.split("[-,]", numbers)[0] + after.partition(",")[0]


def join(world: World, device: torch.device, seconds: float = 1800.0) -> None:
    """Meet the other ranks: gloo for CPU tensors, NCCL for those on CUDA.

    `seconds` is the longest that one message waits; train.runtime.watchdog ends a run that hangs, and says more,
    before that.
    """
    if world.size == 1:
        return
    if world.elastic:
        end_with_parent()
    use_one_worker()
    # The flight recorder keeps the latest messages, for when one of them never ends.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    lowered = lower_debug_level() if backend == "gloo" else None
    if lowered and world.writes:
        warn(lowered)
    dist.init_process_group(
        backend,
        init_method=f"tcp://{world.host}:{world.port}" if not world.elastic else "env://",
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=seconds),
    )


def meeting_store(world: World, name: str) -> PrefixStore:
    """Return a store of notes between ranks of its own connection, for use in a thread of its own."""
    store = TCPStore(world.host, world.port, is_master=False, wait_for_workers=False)
    return PrefixStore(name, store)


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its launcher dies, so that it saves and ends.

    torchrun dies of a SIGUSR1 or SIGUSR2 that it was not told of (--signals-to-handle) and leaves its workers behind.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def leave(world: World) -> None:
    """Part from the other ranks; waits for them, as gloo may abort a peer that is still talking."""
    if world.size > 1 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
