"""Started as `python -m tests.train.evaluate_ranks OUT CONFIG …`: each config on several layouts of ranks.

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
from train.spec import frozen_run
from train.spec.config import HealthConfig, ParallelConfig, RunConfig
from train.trainer import Trainer

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
    trainer = Trainer(config, Path(), world, cpu)
    result = evaluate(trainer.model, trainer.data.validation, trainer.config.eval.by_position, lambda: False)
    assert result is not None
    loss = trainer.mesh.sum_losses_(trainer.forward_backward(trainer.data.loader.batch(40, 6)))
    norm = total_norm([weight for _, weight in trainer.model.named_parameters()], trainer.mesh)
    seen = health(trainer) if inside else {}
    return {**asdict(result), "train": float(loss), "norm": float(norm), "health": seen}


def health(trainer: Trainer) -> dict[str, Any]:
    """Return statistics of a step, and what comparing copies and repeating gradients say, before and after a fault."""
    world, wrong = trainer.world, trainer.world.rank == LAST
    config = HealthConfig(statistics_steps=1, activations=True, desync_steps=1, probe_steps=1)
    inspection = Inspection(config, world, trainer.model.named_parameters, trainer.optimizer)
    batch = trainer.data.loader.batch(0, 4)
    first = batch.part(0, trainer.model.micro)
    activations = inspection.activations(trainer.model.modules, lambda: trainer.model.forward(first))
    calls = [0]

    def flaky() -> torch.Tensor:
        calls[0] += 1
        return trainer.forward_backward(batch) + (1e-6 if wrong and calls[0] == 2 else 0.0)

    probes = [
        said(CorruptionError, lambda: inspection.probe(1, lambda: trainer.forward_backward(batch))),
        said(CorruptionError, lambda: inspection.probe(1, flaky)),
    ]
    watch = inspection.watch(1)
    trainer.train_step(watch)
    assert watch is not None
    copies = [said(DesyncError, lambda: inspection.compare_copies(1))]
    for name, weight in trainer.model.named_parameters():
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
