"""One row of benchmarks.deepspeed_zero3 through this trainer: FSDP2 with `parallel.zero`. Run under torchrun."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers.zero_step import first_weights, main
from train.runtime.distributed import World
from train.spec.config import RunConfig
from train.trainer import Trainer


class Ours:
    """The trainer's own step."""

    def __init__(self, config: RunConfig, folder: Path, world: World, device: torch.device, exact: bool) -> None:
        self.trainer = Trainer(config, folder, world, device, fill=first_weights(config, exact=exact))

    def step(self) -> tuple[Tensor, Tensor]:
        """Take one step; return its loss [nats/token] and gradient norm."""
        return self.trainer.train_step()

    def about(self) -> dict[str, float]:
        """Return nothing more."""
        return {}


if __name__ == "__main__":
    main(Ours, "run one row of benchmarks.deepspeed_zero3 through this trainer")
