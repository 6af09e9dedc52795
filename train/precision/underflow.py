"""How much of a gradient a short format would lose: the part of its elements that it would round to zero.

Counted on the gradients as they are, whatever format the run computes in, so that runs in different formats compare:
elements that are zero already, those that fp16 would make zero at the loss scale in force (below 2^-25 after scaling),
and those that e5m2 with one factor a tensor would (below 2^-17 of what the tensor's largest makes 57,344; of a tensor
that is cut over ranks, each rank takes its part's largest).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

NAMES = ("elements", "zero", "fp16", "fp8")
_FP16, _FP8 = 2.0**-25, 2.0**-17 / torch.finfo(torch.float8_e5m2).max


def counts(gradients: Iterable[Tensor], scale: Tensor) -> Tensor:
    """Return of each gradient how many elements it has, are zero, would be in fp16 at this loss scale, and in fp8.

    (gradients, 4) fp64.
    """
    rows = [_counted(gradient.detach().abs(), scale) for gradient in gradients]
    return torch.stack(rows) if rows else torch.zeros(0, len(NAMES), dtype=torch.float64)


def _counted(size: Tensor, scale: Tensor) -> Tensor:
    if not size.numel():
        return torch.zeros(len(NAMES), dtype=torch.float64, device=scale.device)
    limits = (torch.zeros_like(scale), _FP16 / scale, size.amax() * _FP8)
    lost = [(size <= limit.to(size.device)).sum() for limit in limits]
    return torch.stack([lost[0].new_tensor(size.numel()), *lost]).to(scale.device, torch.float64)


def shares(counted: Iterable[Sequence[float]]) -> dict[str, float]:
    """Return what `counts` gave, of all gradients, as metrics: `gradient_zero`, `underflow_fp16`, `underflow_fp8`."""
    elements, zero, fp16, fp8 = (sum(column) for column in zip(*counted, strict=True))
    whole = max(1.0, elements)
    return {"gradient_zero": zero / whole, "underflow_fp16": fp16 / whole, "underflow_fp8": fp8 / whole}
