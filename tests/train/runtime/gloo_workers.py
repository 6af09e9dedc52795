"""Ranks that look at the groups they have joined, and load one: `python -m tests.train.runtime.gloo_workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from train.runtime import distributed

ROUNDS, COLLECTIVES = 200, 400
"""Two workers abort or hang within 20,000 collectives, mostly; these are 80,000."""


def workers(group: dist.ProcessGroup | None = None) -> int:
    """Return how many threads of this process work off collectives, once they have begun."""
    dist.barrier(group)
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("pt_gloo_runloop")


def load(gloo: Any) -> None:
    """Have many collectives under way at once, with names of more and of fewer than 16 characters in turn."""
    ours, everyones = [torch.ones(8)], [[torch.ones(8)]]
    for _ in range(ROUNDS):
        under_way = []
        for _ in range(COLLECTIVES // 2):
            under_way += [gloo.allgather_coalesced(everyones, ours), gloo.allreduce(ours, dist.AllreduceOptions())]
        for work in under_way:
            work.wait()


def main() -> None:
    torch.set_num_threads(1)
    world, cpu = distributed.world_of(), torch.device("cpu")
    distributed.join(world, cpu, seconds=700.0)
    counts = [workers()]
    alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    counts.append(workers(alone))
    counts.append(workers(init_device_mesh("cpu", (1, world.size), mesh_dim_names=("pp", "tp")).get_group("pp")))
    every = world.gather(counts)
    load(alone._get_backend(cpu))
    if world.writes:
        gloo: Any = dist.group.WORLD
        print([every, gloo._get_backend(cpu).options._timeout.total_seconds()])
    distributed.leave(world)


if __name__ == "__main__":
    main()
