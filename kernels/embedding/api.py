"""Rows of a table by their numbers, in the format that they are wanted in, and the table's gradient in its own.

Reading rows and changing their format in one pass saves writing and reading them once more, forward and backward. The
gradient adds up rows in the order of their places, whatever the GPU does first: numbers are the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.registration import define, fake

WIDEST = 16384
"""The longest row that one program takes."""


def embedding(numbers: Tensor, table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return rows of table (rows, width), shaped (*numbers.shape, width), in `dtype`, by default the table's.

    numbers: int64. A number that is no row's gives an error on a CPU and NaN by Triton. Raises ValueError for shapes or
    dtypes that do not fit.
    """
    if table.dim() != 2 or numbers.dtype != torch.int64 or numbers.device != table.device:
        raise ValueError(
            f"numbers of {numbers.dtype} on {numbers.device}, table {tuple(table.shape)} on {table.device}: must be "
            "int64 and (rows, width) on one device"
        )
    dtype = dtype or table.dtype
    refusal = "" if numbers.numel() and 0 < table.shape[1] <= WIDEST and len(table) else "an empty or too wide tensor"
    if not use_triton("embedding", table, refusal=refusal):
        return F.embedding(numbers, table).to(dtype)
    result: Tensor = _Embedding.apply(numbers.reshape(-1), table, dtype)  # type: ignore[no-untyped-call]
    return result.view(*numbers.shape, -1)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.rows, ctx.dtype = len(table), table.dtype
        result: Tensor = _rows(numbers, table, dtype)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (numbers,) = ctx.saved_tensors
        return None, _gradient(grads[0], numbers, ctx.rows, ctx.dtype), None


@define("embedding(Tensor numbers, Tensor table, ScalarType dtype) -> Tensor")
def _rows(numbers: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    from kernels.embedding.triton import forward

    out = table.new_empty((len(numbers), table.shape[1]), dtype=dtype)
    forward(numbers.contiguous(), table.contiguous(), out)
    return out


@fake(_rows)
def _(numbers: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    return table.new_empty((len(numbers), table.shape[1]), dtype=dtype)


@define("embedding_backward(Tensor grad, Tensor numbers, int rows, ScalarType dtype) -> Tensor")
def _gradient(grad: Tensor, numbers: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    from kernels.embedding.triton import backward

    out = grad.new_empty((rows, grad.shape[1]), dtype=dtype)
    backward(grad.contiguous(), numbers, out)
    return out


@fake(_gradient)
def _(grad: Tensor, numbers: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    return grad.new_empty((rows, grad.shape[1]), dtype=dtype)
