"""The gradient of gate and up behind the product that brings it: grad · down, and SwiGLU's gradients as it leaves.

For N tokens of width D and n hidden channels of b bytes: 2 N n D operations, N (D + 4 n) b bytes; by a product and a
kernel apart N n b more are written and N n b more read. It pays where D is small and the product waits for memory: on
an H200, 40,960 tokens, 90 us for 111 at 256 x 704, 140 for 159 at 384 x 1,024, 213 for 231 at 512 x 1,408.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch_table import launch_of

DEPTHS = (64, 32)
"""How many channels of the width one step of the product takes: the first that divides it."""


@triton.jit
def _tile(place, held, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(place)
    return tl.load(place, mask=held, other=0.0)


@triton.jit
def _put(place, value, held, EVEN: tl.constexpr):
    if EVEN:
        tl.store(place, value)
    else:
        tl.store(place, value, mask=held)


@triton.jit
def gradient_kernel(
    grad, down, gate_up, out, tokens, width, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Write the gradient of gate_up (tokens, 2 columns) from grad (tokens, width) and down (width, columns)."""
    # Programs that follow each other share GROUP blocks of rows, whose gradients stay in the cache.
    blocks, across = tl.cdiv(tokens, ROWS), tl.cdiv(columns, BLOCK)
    first = tl.program_id(0) // (GROUP * across) * GROUP
    height = tl.minimum(blocks - first, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    row = (((first + within % height) * ROWS).to(tl.int64) + tl.arange(0, ROWS))[:, None]
    column = (within // height * BLOCK + tl.arange(0, BLOCK))[None, :]
    depth = tl.arange(0, DEPTH)
    held, there = row < tokens, column < columns
    left, right = grad + row * width + depth[None, :], down + depth[:, None] * columns + column
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, width, DEPTH, num_stages=STAGES):
        total = tl.dot(_tile(left + start, held, EVEN), _tile(right + start * columns, there, EVEN), total)
    held = held & there
    kind = out.dtype.element_ty
    d = total.to(kind).to(tl.float32)  # as a product of its own would hand it on
    place = row * (2 * columns) + column
    g = _tile(gate_up + place, held, EVEN).to(tl.float32)
    u = _tile(gate_up + place + columns, held, EVEN).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    _put(out + place, (d * u * sigmoid * (1.0 + g * (1.0 - sigmoid))).to(kind), held, EVEN)
    _put(out + place + columns, (d * g * sigmoid).to(kind), held, EVEN)


def fits(grad: Tensor, down: Tensor, gate_up: Tensor) -> bool:
    """Say whether `gradient` takes these: short formats, dense, a width in whole steps."""
    dense = all(x.dtype == down.dtype and x.dtype.itemsize == 2 and x.is_contiguous() for x in (grad, down, gate_up))
    right = down.is_cuda or down.dtype != torch.bfloat16  # whose products Triton's interpreter gets wrong
    return dense and right and down.shape[0] % DEPTHS[-1] == 0


def gradient(grad: Tensor, down: Tensor, gate_up: Tensor, out: Tensor) -> None:
    """Fill out, the gradient of gate_up (tokens, 2 hidden), from grad (tokens, width) and down (width, hidden)."""
    tokens, columns = len(grad), down.shape[1]
    chosen = launch_of("gated_mlp_backward", columns)
    programs = triton.cdiv(tokens, chosen.rows) * triton.cdiv(columns, chosen.block)
    launch.launch(
        gradient_kernel, (programs,), grad, down, gate_up, out, tokens, *down.shape, ROWS=chosen.rows,
        BLOCK=chosen.block, DEPTH=next(depth for depth in DEPTHS if len(down) % depth == 0), GROUP=8,
        STAGES=chosen.stages, EVEN=tokens % chosen.rows == 0 and columns % chosen.block == 0, num_warps=chosen.warps,
    )  # fmt: skip
