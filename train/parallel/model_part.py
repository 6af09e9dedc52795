"""One piece of the model on this rank: whose weights they are, and what is called to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from train.model.params import plain_name
from train.model.transformer import Transformer


@dataclass(frozen=True)
class ModelPart:
    """`module` owns the weights, under their names in the whole model; `call` runs it (a wrapper around it, or itself).

    `last_micro(last)` says before a micro-batch's forward pass whether it is the step's last: strategies that sum
    gradients over ranks once a step wait for it. `finish()` completes the gradients after the last micro-batch; it
    has to be called on all ranks. `loss_factor` is what the loss is multiplied by because the strategy
    divides gradients by it.
    """

    module: Transformer
    call: Callable[..., Any]
    last_micro: Callable[[bool], None] = lambda last: None
    finish: Callable[[], None] = lambda: None
    loss_factor: float = 1.0

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights, or this rank's shards of them, by their names in the whole model."""
        for name, weight in self.module.named_parameters():
            yield plain_name(name), weight
