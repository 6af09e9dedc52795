"""Casts to the 8-bit formats with their scales; the mathematics is that of kernels.float8.api.

Bytes for N numbers of b bytes: by rows (b + 1) N, a row staying in registers between its largest value and its cast;
by tensor, or with the transposed copy, (2 b + 1) N and one N more for the copy, for the scales come first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch import fp32
from kernels.core.launch_table import launch_of


@triton.jit
def _cast(x, scaled, most, out):
    """Return x as `scaled`, held within ±most, in out's format."""
    value = tl.minimum(tl.maximum(scaled, -most), most)
    unlike = x != x  # noqa: PLR0124 - NaN, which stays
    return tl.where(unlike, x, value).to(out.dtype.element_ty)


@triton.jit
def rowwise_kernel(x, out, scale_out, x_stride, columns, most, least, BLOCK: tl.constexpr):
    """Write one row's scale, its largest size over `most`, and the row divided by it."""
    most, least = fp32(most), fp32(least)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    size = tl.maximum(tl.max(tl.abs(value), 0), least)
    scale = size * tl.div_rn(fp32(1.0), most)
    tl.store(scale_out + row, scale)
    tl.store(out + row * columns + column, _cast(value, tl.div_rn(value, scale), most, out), mask=inside)


@triton.jit
def sizes_kernel(
    x,
    row_sizes,
    column_sizes,
    x_stride,
    rows,
    columns,
    BY_COLUMN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the largest size in one tile of each row, (tiles across, rows), and each column, (tiles down, columns)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(x + row[:, None] * x_stride + column[None, :], mask=held, other=0.0).to(tl.float32)
    size = tl.abs(value)
    tl.store(row_sizes + tl.program_id(1).to(tl.int64) * rows + row, tl.max(size, 1), mask=row < rows)
    if BY_COLUMN:
        place = tl.program_id(0).to(tl.int64) * columns + column
        tl.store(column_sizes + place, tl.max(size, 0), mask=column < columns)


@triton.jit
def tiles_kernel(
    x, factor, column_scale, out, transposed, x_stride, rows, columns, most,
    BY_ROW: tl.constexpr, COPY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write one tile of x to out, times `factor` or BY_ROW over its row's, and with COPY to the transposed copy."""
    most = fp32(most)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(x + row[:, None] * x_stride + column[None, :], mask=held, other=0.0).to(tl.float32)
    scaled = value
    if BY_ROW:
        scaled = tl.div_rn(value, tl.load(factor + row, mask=row < rows, other=1.0)[:, None])
    else:
        scaled = value * tl.load(factor)
    tl.store(out + row[:, None] * columns + column[None, :], _cast(value, scaled, most, out), mask=held)
    if COPY:
        if BY_ROW:
            scaled = tl.div_rn(value, tl.load(column_scale + column, mask=column < columns, other=1.0)[None, :])
        cast = _cast(value, scaled, most, out)
        place = transposed + column.to(tl.int64)[:, None] * rows + row[None, :]
        tl.store(place, tl.trans(cast), mask=tl.trans(held))


def rowwise(x: Tensor, out: Tensor, scale: Tensor, least: float) -> None:
    """Fill out (rows, columns) and scale (rows, 1) in one pass."""
    rows, columns = x.shape
    chosen = launch_of("fp8_rowwise", columns)
    most = torch.finfo(out.dtype).max
    launch.launch(
        rowwise_kernel, (rows,), x, out, scale, x.stride(0), columns, most, least,
        BLOCK=triton.next_power_of_2(columns), num_warps=chosen.warps,
    )  # fmt: skip


def sizes(x: Tensor, by_column: bool) -> tuple[Tensor, Tensor]:
    """Return the largest size of each row (rows,) and, if asked, of each column (columns,), fp32."""
    rows, columns = x.shape
    grid, meta = _grid(rows, columns, by_column)
    by_rows = x.new_empty((grid[1], rows), dtype=torch.float32)
    by_columns = x.new_empty((grid[0], columns if by_column else 0), dtype=torch.float32)
    launch.launch(sizes_kernel, grid, x, by_rows, by_columns, x.stride(0), rows, columns, BY_COLUMN=by_column, **meta)
    return by_rows.amax(0), by_columns.amax(0)


def tiles(x: Tensor, factor: Tensor, column_scale: Tensor | None, out: Tensor, transposed: Tensor | None) -> None:
    """Fill out and maybe the transposed copy from x and its inverse scale (), or the scales (rows,) and (columns,)."""
    rows, columns = x.shape
    grid, meta = _grid(rows, columns, transposed is not None)
    launch.launch(
        tiles_kernel, grid, x, factor, factor if column_scale is None else column_scale, out,
        out if transposed is None else transposed, x.stride(0), rows, columns, torch.finfo(out.dtype).max,
        BY_ROW=factor.dim() == 1, COPY=transposed is not None, **meta,
    )  # fmt: skip


def _grid(rows: int, columns: int, square: bool) -> tuple[tuple[int, int], dict[str, int]]:
    chosen = launch_of("fp8_tiles" if square else "fp8_rows", columns)
    meta = {"ROWS": chosen.rows, "BLOCK": chosen.block, "num_warps": chosen.warps}
    return (triton.cdiv(rows, chosen.rows), triton.cdiv(columns, chosen.block)), meta
