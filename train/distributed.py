"""Data parallelism by environment: who this process is, and the few things that ranks tell each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """This process among `size` ranks; a world of one never communicates."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

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

    def gather(self, thing: Any) -> list[Any]:
        """Return every rank's thing (small, picklable), in the order of ranks, on every rank."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things


def world_of(env: Mapping[str, str] = os.environ) -> World:
    """Return the world that the environment describes in torchrun's words (RANK, WORLD_SIZE, LOCAL_RANK)."""
    size = int(env.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise ValueError(f"WORLD_SIZE={size} but {', '.join(missing)} not set: start through torchrun or set them")
    rank = int(env["RANK"])
    return World(rank, size, int(env.get("LOCAL_RANK", rank)))


def join(world: World, device: torch.device) -> None:
    """Meet the other ranks: gloo for CPU tensors, NCCL for those on CUDA."""
    if world.size == 1:
        return
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rank=world.rank, world_size=world.size)


def leave(world: World) -> None:
    """Part from the other ranks; waits for them, as gloo may abort a peer that is still talking."""
    if world.size > 1 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
