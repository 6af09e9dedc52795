"""The model as this rank runs it: its parts, and how a batch goes through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from train.data.batch import Batch
from train.memory.activation_budget import Filler
from train.memory.micro_batch import MicroBatch
from train.metrics.timers import UNTIMED, Clock
from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart
from train.precision.loss_scaler import LossScaler
from train.precision.policy import Formats

if TYPE_CHECKING:
    from train.parallel.pipeline import Pipeline


@dataclass(frozen=True)
class ParallelModel:
    """This rank's parts, one unless there is a pipeline, whose stages they are then.

    micro_batch: how many sequences go through at once. formats: which number format is used where. one_shape: micro-
    batches are padded to one shape, for which blocks are compiled. filler: chooses in the first steps what is kept for
    the backward pass.
    """

    parts: tuple[ModelPart, ...]
    mesh: Mesh
    device: torch.device
    micro_batch: MicroBatch
    formats: Formats
    one_shape: bool = False
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

    def forward_backward(
        self, batch: Batch, trained: float | Tensor, scaler: LossScaler, clock: Clock = UNTIMED
    ) -> Tensor:
        """Accumulate the gradients of a batch on the device, of which `trained` tokens count on this rank.

        Returns its part of the mean loss of the global batch, an fp64 scalar on the device [nats/token]. Each
        micro-batch's loss is divided, before its backward pass, by the tokens that the whole global batch trains on: so
        gradients are the same sum however the step is cut into micro-batches and ranks, and however many tokens of each
        count.
        """
        for module in self.modules:
            module.routing.begin_step()
        # Filled in on the device: a copy from memory that is not page-locked would wait for all that runs there.
        if not isinstance(trained, Tensor):
            trained = torch.full((), trained, dtype=torch.float64, device=self.device)
        valid = self.mesh.sum_tokens_(trained).clamp(min=1.0)
        if self.one_shape:
            batch = batch.padded(-(-len(batch) // self.micro) * self.micro)
        if self.pipeline is not None:
            with clock.phase("forward_backward"):
                return self.pipeline.step(batch, valid, scaler.scale if scaler.enabled else 1.0)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        (part,) = self.parts
        micros = batch.split(self.micro)
        for i, micro in enumerate(micros):
            part.last_micro(i == len(micros) - 1)
            with clock.phase("forward"), self.autocast:
                loss = part.call(*micro.arrays) / valid
            with clock.phase("backward"):
                scaled = scaler.scaled(loss * part.loss_factor if part.loss_factor != 1.0 else loss)
                torch.autograd.backward(scaled)
            total += loss.detach()
        part.finish()
        return total

    def shrink_to_fit(self, batch: Callable[[], Batch], forget: Callable[[], object]) -> None:
        """Try whether a micro-batch fits on all ranks, where that is wanted (see `MicroBatch.shrink_to_fit`)."""
        self.micro_batch.shrink_to_fit(lambda: self.trial(batch()), forget, self.mesh.world.any)

    def trial(self, batch: Batch) -> None:
        """Pass a micro-batch of a batch on the CPU forward and backward, without messages to other ranks."""
        (part,) = self.parts
        part.last_micro(False)
        micro = batch.part(0, min(self.micro, len(batch)))
        micro = (micro.padded(self.micro) if self.one_shape else micro).to(self.device)
        with self.autocast:
            loss = part.call(*micro.arrays)
        torch.autograd.backward(loss)

    @torch.no_grad()
    def forward(self, batch: Batch) -> Tensor:
        """Return the summed loss [nats] of a batch on the device, an fp64 scalar; in `each_token` see there."""
        if self.pipeline is not None:
            return self.pipeline.evaluate(batch)
        (part,) = self.parts
        with self.autocast:
            loss: Tensor = part.call(*batch.arrays)
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
