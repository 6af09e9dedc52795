"""A step along a direction with decoupled weight decay: w ← (1 - lr · decay) w - lr · direction."""

from __future__ import annotations

import torch
from torch import Tensor


def decayed_step(
    weight: Tensor, direction: Tensor, lr: float | Tensor, decay: float, *, in_place: bool = False
) -> Tensor:
    """Return where a weight goes, of the weight's format, as the direction is; `in_place`: it is changed.

    lr may be a scalar on the device, for CUDA graphs: either kernel multiplies and adds at once, with the same numbers.
    """
    shrink = 1.0 - lr * decay
    kept = weight.mul_(shrink) if in_place else weight * shrink
    if isinstance(lr, Tensor):
        return torch.addcmul(kept, direction, -lr.to(direction.dtype), out=kept)
    return kept.add_(direction, alpha=-lr)
