"""Gradients of single batches: `python -m tests.train.gradients CONFIG OUT`, on every rank of the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from train.runtime import distributed
from train.runtime.distributed import World
from train.setup import build
from train.spec import frozen_run
from train.step import accumulate, take

COUNTS = (1, 7)
"""Sequences of a batch: one of two ranks has none, or they have unlike numbers."""


def save_gradients(config: Path, out: Path, world: World) -> None:
    """Write loss and gradients of a batch of each of COUNTS sequences."""
    found = {}
    for sequences in COUNTS:
        setup = build(frozen_run.load(config), Path(), world, torch.device("cpu"))
        loss = accumulate(setup, take(setup, 5, sequences))
        grads = {name: weight.grad for name, weight in setup.model.named_parameters()}
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
