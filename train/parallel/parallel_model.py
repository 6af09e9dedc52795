"""The model as this rank runs it: its parts, and how a batch goes through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from train.data.batch import Batch
from train.memory.activation_budget import Filler
from train.memory.micro_batch import MicroBatch
from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart
from train.precision.policy import Formats

if TYPE_CHECKING:
    from train.parallel.pipeline import Pipeline


@dataclass(frozen=True)
class ParallelModel:
    """This rank's parts, one unless there is a pipeline, whose stages they are then.

    micro_batch: how many sequences go through at once. formats: which number format is used where. filler: chooses in
    the first steps what is kept for the backward pass.
    """

    parts: tuple[ModelPart, ...]
    mesh: Mesh
    device: torch.device
    micro_batch: MicroBatch
    formats: Formats
    pipeline: Pipeline | None = None
    filler: Filler | None = None

    @property
    def micro(self) -> int:
        """The most sequences of a micro-batch."""
        return self.micro_batch.size

    @property
    def whole(self) -> Transformer:
        """The model, where this rank holds it as one piece."""
        assert len(self.parts) == 1
        return self.parts[0].module

    @property
    def modules(self) -> tuple[Transformer, ...]:
        """The parts of the model that this rank holds."""
        return tuple(part.module for part in self.parts)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights of all parts here, or this rank's shards of them, by their names in the whole model."""
        for part in self.parts:
            yield from part.named_parameters()

    @property
    def autocast(self) -> torch.autocast:
        """The context in which forward passes run: matrix products in the config's format."""
        return self.formats.autocast(self.device.type)

    @torch.no_grad()
    def forward(self, batch: Batch) -> Tensor:
        """Return the summed loss [nats] of a batch on the device, an fp64 scalar; in `each_token` see there."""
        if self.pipeline is not None:
            return self.pipeline.evaluate(batch)
        (part,) = self.parts
        with self.autocast:
            loss: Tensor = part.call(batch.inputs, batch.targets, batch.positions, batch.documents)
        return loss

    @contextmanager
    def each_token(self) -> Iterator[None]:
        """Let `forward` return each token's loss, (sequences, length) fp32; zeros where another rank has them."""
        for module in self.modules:
            module.each = True
        try:
            yield
        finally:
            for module in self.modules:
                module.each = False
