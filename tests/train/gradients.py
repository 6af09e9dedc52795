"""Gradients of single batches: `python -m tests.train.gradients CONFIG OUT`, on every rank of the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from train.runtime import distributed
from train.runtime.distributed import World
from train.spec import frozen_run
from train.trainer import Trainer

COUNTS = (1, 7)
"""Sequences of a batch: one of two ranks has none, or they have unlike numbers."""


def save_gradients(config: Path, out: Path, world: World) -> None:
    """Write loss and gradients of a batch of each of COUNTS sequences."""
    found = {}
    for sequences in COUNTS:
        trainer = Trainer(frozen_run.load(config), Path(), world, torch.device("cpu"))
        loss = trainer.mesh.sum_losses_(trainer.forward_backward(trainer.data.loader.batch(5, sequences)))
        grads = {name: weight.grad for name, weight in trainer.model.whole.named_parameters()}
        found[sequences] = {"loss": loss, "grads": grads}
    if world.writes:
        torch.save(found, out)


def main(config: Path, out: Path) -> None:
    torch.set_num_threads(1)
    world = distributed.world_of()
    distributed.join(world, torch.device("cpu"))
    save_gradients(config, out, world)
    distributed.leave(world)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
