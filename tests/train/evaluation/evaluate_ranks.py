"""Started as `python -m tests.train.evaluation.evaluate_ranks OUT CONFIG …`: each config on several layouts of ranks.

The first rank writes, by config and layout, what evaluation found and a batch's loss and gradient norm.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from train import distributed, run
from train.distributed import World
from train.evaluate import evaluate
from train.parallel.norm import total_norm
from train.setup import build
from train.spec.config import ParallelConfig, RunConfig
from train.step import accumulate, take

LAYOUTS = {
    "ddp": ParallelConfig(dp_replicate=4, micro_batch_sequences=1),
    "fsdp": ParallelConfig(dp_shard=4, micro_batch_sequences=2),
    "cp x tp": ParallelConfig(cp=2, tp=2, micro_batch_sequences=2),
    "pp x dp": ParallelConfig(pp=2, dp_replicate=2, pp_schedule="1f1b", micro_batch_sequences=1),
}


def found(config: RunConfig, world: World) -> dict[str, Any]:
    """Return the numbers of one layout."""
    cpu = torch.device("cpu")
    setup = build(config, Path(), world, cpu)
    result = evaluate(setup, lambda: False)
    assert result is not None
    loss = accumulate(setup, take(setup, 40, 6))
    norm = total_norm([weight for _, weight in setup.named_parameters()], setup.mesh)
    return {**asdict(result), "train": float(loss), "norm": float(norm)}


def main() -> None:
    """Join the others and go through the layouts."""
    torch.set_num_threads(1)
    world = distributed.world_of()
    distributed.join(world, torch.device("cpu"), 300.0)
    results = [
        {name: found(replace(config, parallel=layout), world) for name, layout in LAYOUTS.items()}
        for config in (run.load(Path(word)) for word in sys.argv[2:])
    ]
    if world.writes:
        Path(sys.argv[1]).write_text(json.dumps(results))
    distributed.leave(world)


if __name__ == "__main__":
    main()
