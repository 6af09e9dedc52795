"""Stochastic rounding from fp32 to bf16: up or down with a chance that makes the mean exact.

A moment in bf16 has 8 bits of mantissa: an update below 1/512 of it is lost by rounding to nearest, and an average with
decay 0.999 stands still. Rounding at random keeps such updates in the mean (Gupta et al. 2015, "Deep learning with
limited numerical precision").
"""

from __future__ import annotations

import torch
from torch import Tensor

_DROPPED = 0xFFFF


def stochastic_round(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return fp32 x in bf16, rounded to one of its two neighbours with chances by distance; inf and nan stay.

    16 random bits are added below bf16's last one and cut off, so that a carry comes with the right chance.
    """
    assert x.dtype is torch.float32
    noise = torch.randint(0, _DROPPED + 1, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    rounded = noise.add_(x.view(torch.int32)).bitwise_and_(~_DROPPED).view(torch.float32)
    # In place, and not by isfinite, which needs as much again: of the largest weights this is the peak of an update.
    torch.where((x - x) == 0, rounded, x, out=rounded)
    return rounded.to(torch.bfloat16)


def copy_rounded_(target: Tensor, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Write x (fp32) into `target`: rounded stochastically where it is bf16, as it is where it is fp32."""
    return target.copy_(stochastic_round(x, generator) if target.dtype is torch.bfloat16 else x)
