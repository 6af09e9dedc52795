"""Ranks that wrap a model where messages are to be debugged: `python -m tests.train.runtime.gloo_details`."""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level
from torch.nn.parallel import DistributedDataParallel

from train.runtime import distributed


def main() -> None:
    set_debug_level(DebugLevel.DETAIL)  # as torch reads it from TORCH_DISTRIBUTED_DEBUG when it is imported
    world = distributed.world_of()
    distributed.join(world, torch.device("cpu"), seconds=700.0)
    wrapped = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    wrapped(torch.full((1, 2), float(world.rank))).sum().backward()
    every = world.gather(wrapped.module.weight.grad.tolist())
    if world.writes:
        print([every, get_debug_level().name])
    distributed.leave(world)


if __name__ == "__main__":
    main()
