"""One rank that has many gloo collectives under way at once: `python -m benchmarks._gloo_load WAY`.

WAY is `torch`, for a group as torch makes it, or `ours`, for one of `train.runtime.gloo`. A group of one rank does:
what threads do to each other's memory happens within a process.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.train.runtime.gloo_workers import load
from train.runtime.gloo import use_one_worker


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "ours":
        use_one_worker()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group: Any = dist.group.WORLD
    load(group._get_backend(torch.device("cpu")))
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
