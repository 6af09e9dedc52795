"""Rows of a table by their numbers, and their gradients added up row by row.

Bytes for N numbers of rows of D, b bytes in the table and c outside: forward up to N D b read (rows come from the
cache where they are few) and N D c written; backward N D c read, V D b written for V rows, and the sort of N numbers.

The places of each number lie together once numbers are sorted, in their own order. A program a row adds up its
gradients; where a number has more than SPAN places, as frequent tokens have, a program a SPAN of places has added up
what lies in it before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch_table import launch_of

SPAN = 128
"""Places that one program adds up."""


@triton.jit
def forward_kernel(numbers, table, out, count, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the rows of ROWS numbers; NaN for a number that is none's."""
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    number = tl.load(numbers + at, mask=at < count, other=-1)
    column = tl.arange(0, BLOCK)[None, :]
    held = (at < count)[:, None] & (column < columns)
    valid = ((number >= 0) & (number < rows))[:, None] & held
    value = tl.load(table + number[:, None] * columns + column, mask=valid, other=float("nan"))
    tl.store(out + at[:, None] * columns + column, value.to(out.dtype.element_ty), mask=held)


@triton.jit
def _sum(grad, places, first, last, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sum (BLOCK,) fp32 of the gradients at places[first:last]."""
    column = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(first, last, ROWS):
        at = start + tl.arange(0, ROWS)
        place = tl.load(places + at, mask=at < last, other=0)
        held = (at < last)[:, None] & (column < columns)
        total += tl.load(grad + place[:, None] * columns + column, mask=held, other=0.0).to(tl.float32)
    return tl.sum(total, 0)


@triton.jit
def spans_kernel(
    grad, places, ordered, starts, partial, rows, columns,
    SPAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the sum of a span's places that are those of the number at its start, if it has more than SPAN."""
    begin = tl.program_id(0) * SPAN
    number = tl.load(ordered + begin).to(tl.int64)
    if (number >= 0) & (number < rows):
        first, last = tl.load(starts + number), tl.load(starts + number + 1)
        if last - first > SPAN:
            total = _sum(grad, places, begin, tl.minimum(last, begin + SPAN), columns, ROWS, BLOCK)
            column = tl.arange(0, BLOCK)
            tl.store(partial + tl.program_id(0).to(tl.int64) * columns + column, total, mask=column < columns)


@triton.jit
def gradient_kernel(
    grad, places, starts, partial, out, columns, SPAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write one row's gradient: the sum over its places, of which whole spans may have been added up already."""
    number = tl.program_id(0).to(tl.int64)
    first, last = tl.load(starts + number), tl.load(starts + number + 1)
    column = tl.arange(0, BLOCK)
    many = last - first > SPAN
    begin = tl.cdiv(first, SPAN)  # the first span that starts with this number
    total = _sum(grad, places, first, tl.where(many, begin * SPAN, last), columns, ROWS, BLOCK)
    for span in range(begin, tl.where(many, tl.cdiv(last, SPAN), begin)):
        place = partial + tl.full((), span, tl.int64) * columns + column
        total += tl.load(place, mask=column < columns, other=0.0)
    tl.store(out + number * columns + column, total.to(out.dtype.element_ty), mask=column < columns)


def key_of(rows: int) -> torch.dtype:
    """Return the shortest format for numbers of rows: a radix sort passes over keys once for every byte."""
    return torch.int16 if rows < 1 << 15 else torch.int32


def forward(numbers: Tensor, table: Tensor, out: Tensor) -> None:
    """Fill out (count, columns) with the rows of numbers (count,); all contiguous."""
    columns = table.shape[1]
    chosen = launch_of("embedding", columns)
    launch.launch(
        forward_kernel, (triton.cdiv(len(numbers), chosen.rows),), numbers, table, out, len(numbers), *table.shape,
        ROWS=chosen.rows, BLOCK=triton.next_power_of_2(columns), num_warps=chosen.warps,
    )  # fmt: skip


def backward(grad: Tensor, numbers: Tensor, out: Tensor) -> None:
    """Fill out (rows, columns) from the gradients (count, columns) of the rows of numbers; all contiguous."""
    rows, columns = out.shape
    ordered, places = torch.sort(numbers.to(key_of(rows)), stable=True)
    starts = torch.searchsorted(ordered, torch.arange(rows + 1, dtype=ordered.dtype, device=ordered.device))
    chosen = launch_of("embedding_backward", columns)
    meta = {
        "SPAN": SPAN, "ROWS": chosen.rows, "BLOCK": triton.next_power_of_2(columns), "num_warps": chosen.warps
    }  # fmt: skip
    spans = triton.cdiv(len(numbers), SPAN)
    partial = grad.new_empty((spans, columns), dtype=torch.float32)
    launch.launch(
        spans_kernel, (spans,), grad, places, ordered, starts, partial, rows, columns, **meta
    )  # fmt: skip
    launch.launch(gradient_kernel, (rows,), grad, places, starts, partial, out, columns, **meta)
