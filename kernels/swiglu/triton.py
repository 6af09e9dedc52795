"""silu(gate) · up and its gradients, gate and up in tensors of their own or as the halves of one.

Bytes for N rows of n hidden numbers of b bytes: forward 3 N n b, backward 5 N n b, and N n b more where it makes the
result again for whoever did not keep it; the sigmoid is made again rather than kept. The halves of a packed row are
read and written where they lie.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch_table import launch_of


@triton.jit
def forward_kernel(
    gate, up, out, gate_stride, up_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write gate · sigmoid(gate) · up."""
    across = tl.cdiv(columns, BLOCK)  # programs that follow each other read on in the same rows
    column = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = ((tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    held = (row < rows) & (column < columns)
    g = tl.load(gate + row * gate_stride + column, mask=held, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=held, other=0.0).to(tl.float32)
    value = g * tl.sigmoid(g) * u
    tl.store(out + row * columns + column, value.to(out.dtype.element_ty), mask=held)


@triton.jit
def backward_kernel(
    grad, gate, up, grad_gate, grad_up, again, grad_stride, gate_stride, up_stride, grad_gate_stride, grad_up_stride,
    rows, columns, AGAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write d gate = grad · up · σ (1 + gate (1 - σ)) and d up = grad · gate · σ, σ = sigmoid(gate).

    With AGAIN also gate · σ · up, as the forward pass did, to again (rows, columns).
    """
    across = tl.cdiv(columns, BLOCK)  # programs that follow each other read on in the same rows
    column = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = ((tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    held = (row < rows) & (column < columns)
    d = tl.load(grad + row * grad_stride + column, mask=held, other=0.0).to(tl.float32)
    g = tl.load(gate + row * gate_stride + column, mask=held, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=held, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    d_gate = d * u * sigmoid * (1.0 + g * (1.0 - sigmoid))
    d_up = d * g * sigmoid
    tl.store(grad_gate + row * grad_gate_stride + column, d_gate.to(grad_gate.dtype.element_ty), mask=held)
    tl.store(grad_up + row * grad_up_stride + column, d_up.to(grad_up.dtype.element_ty), mask=held)
    if AGAIN:
        tl.store(again + row * columns + column, (g * sigmoid * u).to(again.dtype.element_ty), mask=held)


def forward(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """Fill out (rows, columns), contiguous, from gate and up (rows, columns) of any spacing of rows."""
    gate, up = _dense_rows(gate), _dense_rows(up)
    grid, meta = _grid(out)
    launch.launch(forward_kernel, grid, gate, up, out, gate.stride(0), up.stride(0), *out.shape, **meta)


def backward(
    grad: Tensor, gate: Tensor, up: Tensor, grad_gate: Tensor, grad_up: Tensor, again: Tensor | None = None
) -> None:
    """Fill both gradients (rows, columns), whose rows may lie apart, and `again`, contiguous, with the result."""
    grad, gate, up = _dense_rows(grad), _dense_rows(gate), _dense_rows(up)
    grid, meta = _grid(grad_gate)
    launch.launch(
        backward_kernel, grid, grad, gate, up, grad_gate, grad_up, grad_gate if again is None else again,
        grad.stride(0), gate.stride(0), up.stride(0), grad_gate.stride(0), grad_up.stride(0), *grad.shape,
        AGAIN=again is not None, **meta,
    )  # fmt: skip


def _dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _grid(x: Tensor) -> tuple[tuple[int, ...], dict[str, int]]:
    rows, columns = x.shape
    chosen = launch_of("swiglu", columns)
    block = min(chosen.block, triton.next_power_of_2(max(columns, 1)))
    meta = {"ROWS": chosen.rows, "BLOCK": block, "num_warps": chosen.warps}
    return (triton.cdiv(rows, chosen.rows) * triton.cdiv(columns, block),), meta
