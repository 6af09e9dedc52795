"""A tensor times a factor on the device, in one pass: what the losses do with their gradients in backward."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.core.registration import define, fake


@define("scaled(Tensor x, Tensor factor, ScalarType dtype) -> Tensor")
def scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x * factor in dtype, x dense, factor () fp32; Triton only."""
    from kernels.scale.triton import scaled as run

    out = torch.empty_like(x, dtype=dtype)
    run(x, factor, out)
    return out


@fake(scaled)
def _(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(x, dtype=dtype)


@define("scale_(Tensor(a!) x, Tensor factor) -> ()")
def scale_(x: Tensor, factor: Tensor) -> None:
    """Multiply x, dense, by factor () fp32; no memory is touched if it is 1. Triton only."""
    from kernels.scale.triton import scaled as run

    run(x, factor, x)


@fake(scale_)
def _(x: Tensor, factor: Tensor) -> None:
    return None
