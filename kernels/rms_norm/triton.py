"""Root-mean-square norm with and without an addition before it; the mathematics is that of kernels.rms_norm.

Bytes for N rows of D numbers of b bytes: forward 2 N D b, with the addition 4 N D b; backward 3 N D b (reads the
gradient and the normed row's input, writes a gradient), with the gradient of the sum 4 N D b, and 4 D for each program
and the weight's gradient: every program adds up the rows it walks over, and one small sum over the programs follows,
so that the result depends on no order of execution.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.column_sums import column_sums
from kernels.core.launch import fp32
from kernels.core.launch_table import Launch, launch_of, multiprocessors


@triton.jit
def forward_kernel(
    x, residual, weight, out, total, rstd_out, x_stride, residual_stride, rows, columns, eps,
    ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write out = s / rms(s) · weight and rstd = 1 / rms(s); s is x or, with ADD, x + residual, written to total."""
    eps = fp32(eps)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < columns
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        held = (row < rows)[:, None] & inside
        row = row.to(tl.int64)[:, None]
        s = tl.load(x + row * x_stride + column, mask=held, other=0.0).to(tl.float32)
        if ADD:
            s += tl.load(residual + row * residual_stride + column, mask=held, other=0.0).to(tl.float32)
            rounded = s.to(total.dtype.element_ty)
            tl.store(total + row * columns + column, rounded, mask=held)
            s = rounded.to(tl.float32)
        rstd = tl.rsqrt(tl.sum(s * s, 1, keep_dims=True) / columns + eps)
        value = s * rstd * scale
        tl.store(out + row * columns + column, value.to(out.dtype.element_ty), mask=held)
        tl.store(rstd_out + row, rstd, mask=row < rows)


@triton.jit
def backward_kernel(
    grad, grad_total, s_in, weight, rstd_in, grad_s, partial, grad_stride, grad_total_stride, s_stride, rows, columns,
    ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, RELOAD: tl.constexpr,
):  # fmt: skip
    """Write the gradient of s: rstd (h - n · mean(h n)), h = grad · weight, n = s · rstd; with ADD plus grad_total.

    partial (programs, columns) gets this program's share of the weight's gradient, Σ grad · n.
    """
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < columns
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    shares = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        held = (row < rows)[:, None] & inside
        row = row.to(tl.int64)[:, None]
        g = tl.load(grad + row * grad_stride + column, mask=held, other=0.0).to(tl.float32)
        s = tl.load(s_in + row * s_stride + column, mask=held, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_in + row, mask=row < rows, other=0.0)
        n = s * rstd
        shares += g * n
        if RELOAD:  # from the cache each time rather than held: a long row leaves no registers
            scale = tl.load(weight + column + first * 0, mask=inside, other=0.0).to(tl.float32)
        h = g * scale
        value = rstd * (h - n * (tl.sum(h * n, 1, keep_dims=True) / columns))
        if ADD:
            value += tl.load(grad_total + row * grad_total_stride + column, mask=held, other=0.0).to(tl.float32)
        tl.store(grad_s + row * columns + column, value.to(grad_s.dtype.element_ty), mask=held)
    share = tl.sum(shares, 0, keep_dims=True)
    tl.store(partial + tl.program_id(0).to(tl.int64) * columns + column, share, mask=inside)


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor, total: Tensor, rstd: Tensor
) -> None:
    """Fill out, total (if residual is given) and rstd, all contiguous."""
    columns = x.shape[-1]
    flat = _flat(x)
    other = flat if residual is None else _flat(residual)
    chosen = launch_of("rms_norm", columns)
    launch.launch(
        forward_kernel, (_programs(flat, chosen),), flat, other, weight.contiguous(), out, total, rstd,
        flat.stride(0), other.stride(0), len(flat), columns, float(eps), ADD=residual is not None,
        **_meta(columns, chosen),
    )  # fmt: skip


def backward(
    grad: Tensor, grad_total: Tensor | None, s: Tensor, weight: Tensor, rstd: Tensor, grad_s: Tensor
) -> Tensor:
    """Fill grad_s, contiguous; return the weight's gradient (columns,) fp32."""
    columns = s.shape[-1]
    flat, g = _flat(s), _flat(grad)
    other = g if grad_total is None else _flat(grad_total)
    chosen = launch_of("rms_norm_backward", columns)
    programs = _programs(flat, chosen)
    partial = weight.new_empty((programs, columns), dtype=torch.float32)
    launch.launch(
        backward_kernel, (programs,), g, other, flat, weight.contiguous(), rstd, grad_s, partial, g.stride(0),
        other.stride(0), flat.stride(0), len(flat), columns, ADD=grad_total is not None,
        RELOAD=columns > 8192, **_meta(columns, chosen),
    )  # fmt: skip
    return column_sums(partial)


def _flat(x: Tensor) -> Tensor:
    """Return x as (rows, columns), copied only if its rows are not evenly spaced or their numbers lie apart."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _programs(flat: Tensor, chosen: Launch) -> int:
    blocks: int = triton.cdiv(len(flat), chosen.rows)
    return min(blocks, chosen.programs * multiprocessors(flat.device)) if chosen.programs else blocks


def _meta(columns: int, chosen: Launch) -> dict[str, int]:
    block = triton.next_power_of_2(columns)
    return {"ROWS": chosen.rows, "BLOCK": block, "STAGES": chosen.stages, "num_warps": chosen.warps}
