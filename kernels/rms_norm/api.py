"""Root-mean-square norm (Zhang and Sennrich 2019): x / sqrt(mean(x²) + eps) * weight over the last axis.

Computed in fp32 whatever comes in. `add_rms_norm` adds the residual first and gives the sum back beside the normed
value: one pass over memory where two operations would take two. `fork_rms_norm` gives its input back beside the normed
value, so that the gradients of both come together in the pass that it takes anyway.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.core.dispatch import FLOATS, use_triton
from kernels.core.dtensor import rowwise, use_dtensor
from kernels.core.registration import define, fake

WIDEST = 16384
"""The longest row that one program takes."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the normed x (…, width) in `dtype`, by default x's; weight (width,), any float dtypes.

    Raises ValueError for shapes or devices that do not fit.
    """
    dtype = dtype or x.dtype
    _check(x, weight, dtype)
    if not use_triton("rms_norm", x, weight, refusal=_refusal(x, dtype), fuse=True):
        return reference(x, weight, eps, dtype)
    use_dtensor(x, weight)
    normed: Tensor = _RMSNorm.apply(x, None, weight, eps, dtype)[1]  # type: ignore[no-untyped-call]
    return normed


def fork_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x as it is and its normed value, whose gradients come together in one pass over memory.

    x (…, width), weight (width,). The kernel runs in compiled code as well. Raises ValueError for shapes or devices
    that do not fit.
    """
    _check(x, weight, x.dtype)
    if not use_triton("fork_rms_norm", x, weight, refusal=_refusal(x, x.dtype)):
        return x, reference(x, weight, eps, x.dtype)
    use_dtensor(x, weight)
    result: tuple[Tensor, Tensor] = _ForkRMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return result


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, dtype: torch.dtype | None = None, fuse: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (x + residual, its normed value): the sum in the wider dtype of both, the other in `dtype` or the sum's.

    x and residual (…, width), weight (width,). `fuse` leaves it to a compiler where there is one, which makes the sum
    once more in the backward pass. Raises ValueError for shapes or devices that do not fit.
    """
    summed = torch.promote_types(x.dtype, residual.dtype)
    dtype = dtype or summed
    _check(x, weight, dtype)
    if residual.shape != x.shape or residual.device != x.device:
        raise ValueError(
            f"residual {tuple(residual.shape)} on {residual.device}: must be as x, {tuple(x.shape)} on {x.device}"
        )
    if not use_triton("add_rms_norm", x, residual, weight, refusal=_refusal(x, dtype), fuse=fuse):
        total = x + residual
        return total, reference(total, weight, eps, dtype)
    use_dtensor(x, residual, weight)
    result: tuple[Tensor, Tensor] = _RMSNorm.apply(x, residual, weight, eps, dtype)  # type: ignore[no-untyped-call]
    return result


def reference(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the same in plain torch."""
    exact = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    wide, scale = x.to(exact), weight.to(exact)
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not use_dtensor(x, weight):
        normed: Tensor = _OnCPU.apply(wide, scale, eps)  # type: ignore[no-untyped-call]
        return normed.to(dtype)
    return F.rms_norm(wide, scale.shape, scale, eps).to(dtype)


def _check(x: Tensor, weight: Tensor, dtype: torch.dtype) -> None:
    if weight.dim() != 1 or x.dim() < 1 or x.shape[-1] != len(weight):
        raise ValueError(f"weight {tuple(weight.shape)}: must be (width,) for x (…, width), {tuple(x.shape)}")
    if weight.device != x.device:
        raise ValueError(f"weight on {weight.device}: must be on x's device, {x.device}")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype}: must be a float dtype")


def _refusal(x: Tensor, dtype: torch.dtype) -> str:
    if not 0 < x.shape[-1] <= WIDEST:
        return f"rows of {x.shape[-1]} numbers, 1 to {WIDEST} are"
    return "" if dtype in FLOATS else f"a result of {dtype}"


class _OnCPU(torch.autograd.Function):
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
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        width = x.shape[-1]
        rows, rstd = grads[0].reshape(-1, width), rstd.reshape(-1, 1)
        grad_x, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(
            rows, x.reshape(-1, width), [width], torch.zeros_like(rstd), rstd, weight, None, [True, True, False]
        )
        means = torch.mv(rows, weight).div_(width).unsqueeze(-1)
        grad_x.addcmul_(means, rstd)
        return grad_x.view_as(x), grad_weight, None


class _RMSNorm(torch.autograd.Function):
    """(sum, normed) by Triton; without a residual the sum is empty."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        total, normed, rstd = _forward(x, residual, weight, eps, dtype)
        ctx.save_for_backward(x if residual is None else total, weight, rstd)
        ctx.dtypes = None if residual is None else (x.dtype, residual.dtype)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        s, weight, rstd = ctx.saved_tensors
        grad_total, grad = grads[0] if ctx.dtypes is not None else None, grads[1]
        grad_weight = None
        if grad is not None:
            grad_total, grad_weight = _backward(grad, grad_total, s, weight, rstd)
        if ctx.dtypes is None or grad_total is None:
            return grad_total, None, grad_weight, None, None
        grad_x, grad_residual = (grad_total.to(dtype) for dtype in ctx.dtypes)
        return grad_x, grad_residual, grad_weight, None, None


class _ForkRMSNorm(torch.autograd.Function):
    """(x, normed) by Triton."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        _, normed, rstd = _forward(x, None, weight, eps, x.dtype)
        ctx.save_for_backward(x, weight, rstd)
        ctx.set_materialize_grads(False)
        return x.view_as(x), normed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        if grads[1] is None:
            return grads[0], None, None
        return *_backward(grads[1], grads[0], x, weight, rstd), None


@define("rms_norm(Tensor x, Tensor? residual, Tensor weight, float eps, ScalarType dtype) -> (Tensor, Tensor, Tensor)")
def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    from kernels.rms_norm.triton import forward

    total, out, rstd = _room(x, residual, weight, eps, dtype)
    forward(x, residual, weight, eps, out, total, rstd)
    return total, out, rstd


@fake(_forward)
def _room(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    summed = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    total = x.new_empty(x.shape if residual is not None else (0,), dtype=summed)
    return total, x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)


@define("rms_norm_backward(Tensor grad, Tensor? grad_total, Tensor s, Tensor weight, Tensor rstd) -> (Tensor, Tensor)")
def _backward(
    grad: Tensor, grad_total: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    from kernels.rms_norm.triton import backward

    grad_s = s.new_empty(s.shape)
    return grad_s, backward(grad, grad_total, s, weight, rstd, grad_s).to(weight.dtype)


@fake(_backward)
def _(grad: Tensor, grad_total: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return s.new_empty(s.shape), weight.new_empty(weight.shape)


rowwise(_forward, "s?w--", "?ss")
rowwise(_backward, "s?sws", "sp")
