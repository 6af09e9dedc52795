"""Started as `python -m tests.train.evaluation.evaluate_ranks OUT CONFIG …`: each config on several layouts of ranks.

The first rank writes, by config and layout, what evaluation found, a batch's loss and gradient norm, and of the first
config what looking inside (train.health) found there: in a sound run, and in one in which the last rank went wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kernels.core.dtensor import local
from train.evaluate import evaluate
from train.health.inspection import Inspection
from train.health.repeat_step import CorruptionError
from train.health.replica_hashes import DesyncError
from train.parallel.grad_norm import total_norm
from train.runtime import distributed
from train.runtime.distributed import World
from train.setup import Setup, build
from train.spec import frozen_run
from train.spec.config import HealthConfig, ParallelConfig, RunConfig
from train.state import TrainState
from train.step import accumulate, accumulate_own, look, step, take

LAYOUTS = {
    "ddp": ParallelConfig(dp_replicate=4, micro_batch_sequences=1),
    "hsdp": ParallelConfig(dp_replicate=2, dp_shard=2, micro_batch_sequences=1),
    "cp x tp": ParallelConfig(cp=2, tp=2, micro_batch_sequences=4),
    "pp x dp": ParallelConfig(pp=2, dp_replicate=2, pp_schedule="1f1b", micro_batch_sequences=2),
}
"""Each rank's first micro-batch of four sequences is all that it has of them."""

LAST = 3


def found(config: RunConfig, world: World, inside: bool) -> dict[str, Any]:
    """Return the numbers of one layout; `inside`: those of `health` too."""
    cpu = torch.device("cpu")
    setup = build(config, Path(), world, cpu)
    result = evaluate(setup, lambda: False)
    assert result is not None
    loss = accumulate(setup, take(setup, 40, 6))
    norm = total_norm([weight for _, weight in setup.named_parameters()], setup.mesh)
    seen = health(setup) if inside else {}
    return {**asdict(result), "train": float(loss), "norm": float(norm), "health": seen}


def health(setup: Setup) -> dict[str, Any]:
    """Return statistics of a step, and what comparing copies and repeating gradients say, before and after a fault."""
    world, wrong = setup.world, setup.world.rank == LAST
    config = HealthConfig(statistics_steps=1, activations=True, desync_steps=1, probe_steps=1)
    inspection = Inspection(config, world, setup.named_parameters, setup.optimizer)
    batch, progress = take(setup, 0, 4), TrainState()
    activations = inspection.activations(setup.modules, lambda: look(setup, batch))
    calls = [0]

    def flaky() -> torch.Tensor:
        calls[0] += 1
        return accumulate_own(setup, batch) + (1e-6 if wrong and calls[0] == 2 else 0.0)

    probes = [
        said(CorruptionError, lambda: inspection.probe(1, lambda: accumulate_own(setup, batch))),
        said(CorruptionError, lambda: inspection.probe(1, flaky)),
    ]
    watch = inspection.watch(1)
    step(setup, progress, observer=watch)
    assert watch is not None
    copies = [said(DesyncError, lambda: inspection.compare_copies(1))]
    for name, weight in setup.named_parameters():
        if wrong and name in ("embedding.weight", "norm.weight"):
            local(weight.detach()).view(-1)[:1] += 1e-3
    copies.append(said(DesyncError, lambda: inspection.compare_copies(1)))
    return {"statistics": {**activations, **watch.metrics(world)}, "probes": probes, "copies": copies}


def said(error: type[Exception], call: Callable[[], object]) -> str:
    """Return what an error said, nothing where there was none."""
    try:
        call()
    except error as caught:
        return str(caught)
    return ""


def main() -> None:
    """Join the others and go through the layouts."""
    torch.set_num_threads(1)
    world = distributed.world_of()
    distributed.join(world, torch.device("cpu"), 300.0)
    results = [
        {name: found(replace(config, parallel=layout), world, number == 0) for name, layout in LAYOUTS.items()}
        for number, config in enumerate(frozen_run.load(Path(word)) for word in sys.argv[2:])
    ]
    if world.writes:
        Path(sys.argv[1]).write_text(json.dumps(results))
    distributed.leave(world)


if __name__ == "__main__":
    main()
