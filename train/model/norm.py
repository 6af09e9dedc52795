"""Root-mean-square norm (Zhang and Sennrich 2019): x / rms(x) * weight over the last axis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """RMSNorm over the last axis of size `width`, computed in fp32 whatever comes in, returned in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed x, of the same shape."""
        return rms_norm(x.float(), self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight over the last axis of x."""
    return F.rms_norm(x, weight.shape, weight, eps)
