"""Root-mean-square norm (Zhang and Sennrich 2019): x / rms(x) * weight over the last axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model.weights import local


class RMSNorm(nn.Module):
    """RMSNorm over the last axis of size `width`, computed in fp32 whatever comes in, returned as it came."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed x, of the same shape."""
        return rms_norm(x.float(), local(self.weight).float(), self.eps).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight over the last axis of x."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, eps)
    normed: Tensor = _RMSNormCPU.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return normed


class _RMSNormCPU(torch.autograd.Function):
    """The same with a third of the memory traffic of F.rms_norm, which on a CPU is a chain of elementwise kernels.

    The backward pass borrows layer norm's kernel, told that the mean was zero. For a gradient g, with h = g * weight,
    it gives rstd * (h - mean(h) - normed * mean(h * normed)); root-mean-square norm has no mean to be subtracted,
    so rstd * mean(h) is added back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        rstd = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, rstd)
        normed: Tensor = (x * rstd).mul_(weight)
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        width = x.shape[-1]
        rows = grads[0].reshape(-1, width)
        grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(
            rows, x.reshape(-1, width), [width], torch.zeros_like(rstd), rstd, weight, None, [True, True, False]
        )
        means = torch.mv(rows, weight).div_(width).unsqueeze(-1)
        grad_x.addcmul_(means, rstd.reshape(-1, 1))
        return grad_x.view_as(x), grad_weight, None
