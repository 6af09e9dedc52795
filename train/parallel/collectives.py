"""Collectives that gradients flow through, in the form that torch.compile can see and overlap.

They return plain, finished tensors: a tensor that still waits for its message and enters a compiled block makes the
gradient of what produced it zero in torch 2.13 (and an error without sharding).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ops = torch.ops._c10d_functional


def gather(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """Return the parts of all ranks joined along `dim`; the gradient of each part is summed over ranks."""
    joined: Tensor = _Gather.apply(x, group.group_name, group.size(), dim)  # type: ignore[no-untyped-call]
    return joined


def scatter(x: Tensor, group: dist.ProcessGroup, dim: int = 1) -> Tensor:
    """Return this rank's part along `dim` of the sum over ranks; the gradient is gathered."""
    part: Tensor = _Scatter.apply(x, group.group_name, group.size(), dim)  # type: ignore[no-untyped-call]
    return part


def total(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over ranks of something that has no gradient."""
    with torch.no_grad():
        summed: Tensor = _ops.wait_tensor(_ops.all_reduce(x, "sum", group.group_name))
    return summed


def swapped(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return row i of every rank i's x (ranks, …) as this rank's rows; without gradients."""
    with torch.no_grad():
        return _all_to_all(x, [1] * len(x), [1] * len(x), group.group_name)


def exchanged(x: Tensor, there: list[int], here: list[int], group: dist.ProcessGroup) -> Tensor:
    """Return the rows that ranks send here, `here` of each; `there` of x go to each, in order. Gradients go back."""
    found: Tensor = _Exchanged.apply(x, there, here, group.group_name)  # type: ignore[no-untyped-call]
    return found


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: list[int], here: list[int], group: str) -> Tensor:
        ctx.there, ctx.here, ctx.group = there, here, group
        return _all_to_all(x, there, here, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _all_to_all(grads[0], ctx.here, ctx.there, ctx.group), None, None, None


def _all_to_all(x: Tensor, there: list[int], here: list[int], group: str) -> Tensor:
    found: Tensor = _ops.wait_tensor(_ops.all_to_all_single(x.contiguous(), here, there, group))
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str, size: int, dim: int) -> Tensor:
        ctx.group, ctx.size, ctx.dim = group, size, dim
        return _joined(x, group, size, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _part_of_sum(grads[0], ctx.group, ctx.size, ctx.dim), None, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str, size: int, dim: int) -> Tensor:
        ctx.group, ctx.size, ctx.dim = group, size, dim
        return _part_of_sum(x, group, size, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _joined(grads[0], ctx.group, ctx.size, ctx.dim), None, None, None


def _joined(x: Tensor, group: str, size: int, dim: int) -> Tensor:
    parts: Tensor = _ops.wait_tensor(_ops.all_gather_into_tensor(x.contiguous(), size, group))
    return parts if dim == 0 else torch.cat(parts.chunk(size), dim)


def _part_of_sum(x: Tensor, group: str, size: int, dim: int) -> Tensor:
    whole = x.contiguous() if dim == 0 else torch.cat(x.chunk(size, dim))
    part: Tensor = _ops.wait_tensor(_ops.reduce_scatter_tensor(whole, "sum", size, group))
    return part
