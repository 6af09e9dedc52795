"""What autograd saves of a model's forward pass: the truth against which kept activations are counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from train.model.transformer import Transformer
from train.spec.config import RunConfig

Change = Callable[[Transformer], object]


def saved(config: RunConfig, layers: int, sequences: int, fake: bool, change: Change) -> int:
    """Return the bytes that autograd saves in a forward pass, weights left out."""
    length = config.data.sequence_length
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # so that no other memory gets the same number

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        kept.append(tensor)
        return tensor

    with FakeTensorMode() if fake else nullcontext():
        model = Transformer(replace(config.model, layers=layers), config.data.vocab_size, length)
        change(model)
        rows = torch.zeros(sequences, length, dtype=torch.int64)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=config.precision.name != "fp32"):
            model(rows, rows)
        own = {weight.untyped_storage()._cdata for weight in model.parameters()}
    return sum(size for which, size in sizes.items() if which not in own)
