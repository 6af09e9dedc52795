"""Products of rows with one matrix of several, rows of a group side by side: the layers of a mixture of experts.

On a GPU of compute capability 9.0 or newer bf16 goes to torch's grouped product (torch._grouped_mm, one launch for all
groups). Everything else is a product for each group, for which sizes come to the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.core.flop_counts import flops, tell_counters
from kernels.core.registration import define, fake

ALIGNED = 16
"""Bytes of which rows have to be a multiple for torch's grouped product."""


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Return each row of x (rows, columns) times its group's weightᵀ, (rows, out), in x's dtype or autocast's.

    weight (groups, out, columns). ends (groups,) int32: where the rows of each group end, in order, the last at `rows`;
    a group may have none. Raises ValueError for shapes that do not fit.
    """
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[2] or ends.shape != weight.shape[:1]:
        raise ValueError(
            f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, ends {tuple(ends.shape)}: must be (rows, columns), "
            "(groups, out, columns) and (groups,)"
        )
    tell_counters()
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    with torch.autocast(device, enabled=False):
        result: Tensor = _GroupedLinear.apply(x.to(dtype), weight.to(dtype), ends)  # type: ignore[no-untyped-call]
    return result


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        result: Tensor = _product(x, weight, ends, True)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ends = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_x = _product(grad, weight, ends, False) if ctx.needs_input_grad[0] else None
        return of_x, _outer(grad, x, ends) if ctx.needs_input_grad[1] else None, None


@define("grouped_product(Tensor x, Tensor weight, Tensor ends, bool transposed) -> Tensor")
def _product(x: Tensor, weight: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    """Return rows times their group's matrix, or with `transposed` its transpose."""
    matrices = weight.mT if transposed else weight
    if _in_one_launch(x, weight):
        return torch._grouped_mm(x, matrices, offs=ends)
    out, start = x.new_empty(len(x), matrices.shape[2]), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        torch.mm(x[start:end], matrix, out=out[start:end])
        start = end
    return out


GROUPED_PRODUCT = _product
"""The operator, for those who choose what is computed again."""


@define("grouped_outer(Tensor grad, Tensor x, Tensor ends) -> Tensor")
def _outer(grad: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Return gradᵀ x of each group's rows, (groups, out, columns): zeros where a group has none."""
    if _in_one_launch(x, grad):
        # torch does not say what it writes for a group without rows.
        empty = torch.diff(ends, prepend=ends.new_zeros(1)) == 0
        return torch._grouped_mm(grad.t(), x, offs=ends).masked_fill_(empty[:, None, None], 0.0)
    out, start = x.new_empty(len(ends), grad.shape[1], x.shape[1]), 0
    for matrix, end in zip(out, ends.tolist(), strict=True):
        torch.mm(grad[start:end].t(), x[start:end], out=matrix)
        start = end
    return out


def _in_one_launch(x: Tensor, other: Tensor) -> bool:
    rows = x.element_size() * x.shape[-1], x.element_size() * other.shape[-1], x.element_size() * other.shape[-2]
    if not x.is_cuda or x.dtype is not torch.bfloat16 or any(size % ALIGNED for size in rows[: other.dim()]):
        return False
    return torch.cuda.get_device_capability(x.device) >= (9, 0)


@fake(_product)
def _(x: Tensor, weight: Tensor, ends: Tensor, transposed: bool) -> Tensor:
    return x.new_empty(len(x), weight.shape[1 if transposed else 2])


@fake(_outer)
def _(grad: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(len(ends), grad.shape[1], x.shape[1])


@flops(_product)
def _product_flops(x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return int(2 * x[0] * weight[1] * weight[2])


@flops(_outer)
def _outer_flops(grad: Any, x: Any, *_: Any, **__: Any) -> int:
    return int(2 * grad[0] * grad[1] * x[1])
