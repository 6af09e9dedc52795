"""`python -m train.check_ranks --out FILE`: test torch, this process's device and collectives between ranks.

Started as one rank of several (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them) or alone. The first
rank writes what it found as JSON.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.check_ranks")

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.runtime.distributed import World, join, leave, world_of
from train.spec.command_line import Parser

MESSAGE_BYTES = 16 * 2**20
REPEATS = 5
SECONDS = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code: 1 where ranks did not add up right."""
    parser = Parser(prog="python -m train.check_ranks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the first rank writes JSON")
    options = parser.parse_args(arguments)
    world = world_of()
    found = probe(world)
    if world.writes:
        options.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0 if found["sum_is_right"] else 1


def probe(world: World) -> dict[str, Any]:
    """Return versions, devices, and of several ranks: the backend, whether a sum over them is right, and its speed.

    `gb_per_s` is message size over time of an all-reduce of 16 MiB, the median of five [GB/s].
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", world.local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "devices": torch.cuda.device_count() if cuda else 0,
        "ranks": world.size,
        "backend": None,
        "sum_is_right": True,
        "gb_per_s": None,
    }
    if world.size == 1:
        square = torch.ones(64, 64, device=device)
        found["sum_is_right"] = bool((square @ square == 64).all())
        return found
    join(world, device, seconds=SECONDS)
    message = torch.full((MESSAGE_BYTES // 4,), float(world.rank + 1), device=device)
    dist.all_reduce(message)
    found["backend"] = "nccl" if cuda else "gloo"
    found["sum_is_right"] = bool((message == world.size * (world.size + 1) / 2).all())
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        dist.all_reduce(message)
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    found["gb_per_s"] = MESSAGE_BYTES / sorted(times)[REPEATS // 2] / 1e9
    leave(world)
    return found
