"""Casts to the 8-bit float formats, with scales by row or for the whole tensor, as `torch._scaled_mm` takes them.

    scale = max |x| / largest number of the format,  values = x / scale,  so that values · scale ≈ x
(Micikevicius et al. 2022, "FP8 formats for deep learning"). Rows are divided by their scales; a whole tensor is
multiplied by the inverse of its scale. The product for the weight's gradient needs the transposed copy, which by row
has scales of its own: its rows are the columns of x.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.registration import define, fake

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)
LEAST = 1e-12
"""Magnitude that a row of zeros counts as."""
WIDEST = 32768
"""The longest row that one program takes."""


class Fp8(NamedTuple):
    """values (rows, columns); scale () or (rows, 1) fp32; transposed copy (columns, rows) and its scale, or None."""

    values: Tensor
    scale: Tensor
    transposed: Tensor | None
    transposed_scale: Tensor | None


def cast_fp8(
    x: Tensor,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    by: Literal["row", "tensor"] = "row",
    transposed: bool = False,
    largest: Tensor | None = None,
) -> Fp8:
    """Return x (rows, columns), fp32, bf16 or fp16, in an 8-bit format with its scale; values saturate, NaN stays.

    `transposed` adds the copy (columns, rows). A size () given as `largest` with by="tensor" counts as that of the
    largest number, and saves the pass that finds it. Not differentiable. Raises ValueError for shapes or formats that
    do not fit.
    """
    if x.dim() != 2 or not x.is_floating_point():
        raise ValueError(f"x {tuple(x.shape)} of {x.dtype}: must be (rows, columns) of floats")
    if dtype not in FORMATS:
        raise ValueError(f"dtype={dtype}: must be one of {', '.join(map(str, FORMATS))}")
    if by not in {"row", "tensor"}:
        raise ValueError(f"by={by!r}: must be row or tensor")
    if largest is not None and (by == "row" or largest.numel() != 1):
        raise ValueError(f"largest {tuple(largest.shape)} with by={by!r}: only one number, and with by='tensor'")
    refusal = "" if x.numel() else "an empty tensor"
    run = _by_triton if use_triton("cast_fp8", x, refusal=refusal) else _reference
    values, scales, copy, copy_scale = run(x.detach(), dtype, by == "row", transposed, largest)
    return Fp8(values, scales, copy, copy_scale) if transposed else Fp8(values, scales, None, None)


def scale_of(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale of numbers up to `size`, at least `LEAST`: a product, which rounds alike on every device."""
    return size * torch.finfo(dtype).max ** -1


def _inverse(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1 / scale from the size that the scale is made of, which rounds once less."""
    return size.reciprocal() * torch.finfo(dtype).max


def _given(largest: Tensor) -> Tensor:
    return largest.float().reshape(()).clamp(min=LEAST)


def _reference(
    x: Tensor, dtype: torch.dtype, by_row: bool, transposed: bool, largest: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide, most = x.float(), torch.finfo(dtype).max

    def by(axis: int) -> tuple[Tensor, Tensor]:
        # On a GPU torch makes of a division by a number the product that `scale_of` is, on a CPU it divides.
        scale = wide.abs().amax(axis, keepdim=True).clamp(min=LEAST) / most
        return (wide / scale).clamp(-most, most).to(dtype), scale

    nothing = x.new_empty((0, 0), dtype=dtype), x.new_empty((0, 0), dtype=torch.float32)
    if by_row:
        if not transposed:
            return *by(1), *nothing
        copy, copy_scale = by(0)
        return *by(1), copy.t().contiguous(), copy_scale.t().contiguous()
    size = wide.abs().amax().clamp(min=LEAST) if largest is None else _given(largest)
    values = (wide * _inverse(size, dtype)).clamp(-most, most).to(dtype)
    found = scale_of(size, dtype)
    return (values, found, values.t().contiguous(), found.clone()) if transposed else (values, found, *nothing)


@define(
    "cast_fp8(Tensor x, ScalarType dtype, bool by_row, bool transposed, Tensor? largest)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
def _by_triton(
    x: Tensor, dtype: torch.dtype, by_row: bool, transposed: bool, largest: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from kernels.float8 import triton

    x = x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    values, scales, copy, copy_scale = _room(x, dtype, by_row, transposed, largest)
    if by_row and not transposed and x.shape[1] <= WIDEST:
        triton.rowwise(x, values, scales, LEAST)
        return values, scales, copy, copy_scale
    goal = copy if transposed else None
    if by_row:
        by_rows, by_columns = (scale_of(size.clamp_(min=LEAST), dtype) for size in triton.sizes(x, transposed))
        triton.tiles(x, by_rows, by_columns if transposed else None, values, goal)
        scales.view(-1).copy_(by_rows)
        if transposed:
            copy_scale.view(-1).copy_(by_columns)
        return values, scales, copy, copy_scale
    size = triton.sizes(x, False)[0].amax().clamp_(min=LEAST) if largest is None else _given(largest)
    scales.copy_(scale_of(size, dtype))
    triton.tiles(x, _inverse(size, dtype), None, values, goal)
    if transposed:
        copy_scale.copy_(scales)
    return values, scales, copy, copy_scale


@fake(_by_triton)
def _room(
    x: Tensor, dtype: torch.dtype, by_row: bool, transposed: bool, largest: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x.shape
    scales = x.new_empty((rows, 1) if by_row else (), dtype=torch.float32)
    copy = x.new_empty((columns, rows) if transposed else (0, 0), dtype=dtype)
    shape = ((columns, 1) if by_row else ()) if transposed else (0, 0)
    return x.new_empty((rows, columns), dtype=dtype), scales, copy, x.new_empty(shape, dtype=torch.float32)
