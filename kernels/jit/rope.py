"""Rotary embedding of queries and keys in one launch, a program a token, which reads its angles once for all heads.

Bytes for N tokens of H heads (queries and keys) of d numbers of b bytes: 2 N H d b, and 4 N d for the angles.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.jit import launching
from kernels.tuning import launch_of


@triton.jit
def _turn(
    x, out, cos, sin, heads, pairs, head_stride, out_head_stride,
    NEIGHBOURS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write (a cos - b sin, a sin + b cos) for all pairs (a, b) of one token: neighbours, or of the two halves."""
    pair = tl.arange(0, PAIRS)
    for first in range(0, heads, HEADS):
        head = first + tl.arange(0, HEADS)
        if NEIGHBOURS:
            number = tl.arange(0, 2 * PAIRS)
            held = (head[:, None] < heads) & (number < 2 * pairs)[None, :]
            both = tl.load(x + head[:, None] * head_stride + number[None, :], mask=held, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (HEADS, PAIRS, 2)))
            turned = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (HEADS, 2 * PAIRS))
            goal = out + head[:, None] * out_head_stride + number[None, :]
            tl.store(goal, turned.to(out.dtype.element_ty), mask=held)
        else:
            held = (head[:, None] < heads) & (pair < pairs)[None, :]
            place = x + head[:, None] * head_stride + pair[None, :]
            a = tl.load(place, mask=held, other=0.0).to(tl.float32)
            b = tl.load(place + pairs, mask=held, other=0.0).to(tl.float32)
            goal = out + head[:, None] * out_head_stride + pair[None, :]
            tl.store(goal, (a * cos - b * sin).to(out.dtype.element_ty), mask=held)
            tl.store(goal + pairs, (a * sin + b * cos).to(out.dtype.element_ty), mask=held)


@triton.jit
def rope_kernel(
    q, k, turns, positions, q_out, k_out, length, pairs, q_heads, k_heads,
    q_batch, q_token, q_head, k_batch, k_token, k_head,
    q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head, position_batch,
    INVERSE: tl.constexpr, NEIGHBOURS: tl.constexpr, POSITIONS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Turn one token's q (heads, 2 pairs) and k by turns[its position] (pairs, (cos, sin)), or back if INVERSE."""
    token = tl.program_id(0)
    batch = (token // length).to(tl.int64)
    token = (token % length).to(tl.int64)
    position = token
    if POSITIONS:
        position = tl.load(positions + batch * position_batch + token)
    number = tl.arange(0, 2 * PAIRS)
    angles = tl.load(turns + position * (2 * pairs) + number, mask=number < 2 * pairs, other=0.0)
    cos, sin = tl.split(tl.reshape(angles, (1, PAIRS, 2)))
    if INVERSE:
        sin = -sin
    _turn(
        q + batch * q_batch + token * q_token, q_out + batch * q_out_batch + token * q_out_token, cos, sin,
        q_heads, pairs, q_head, q_out_head, NEIGHBOURS, HEADS, PAIRS,
    )  # fmt: skip
    _turn(
        k + batch * k_batch + token * k_token, k_out + batch * k_out_batch + token * k_out_token, cos, sin,
        k_heads, pairs, k_head, k_out_head, NEIGHBOURS, HEADS, PAIRS,
    )  # fmt: skip


def rope(
    q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None, outs: tuple[Tensor, Tensor],
    interleaved: bool, inverse: bool,
) -> None:  # fmt: skip
    """Fill outs from q and k (batch, length, heads, head_dim), last axis dense; turns (positions, pairs, 2) fp32."""
    batch, length, heads, width = q.shape
    q, k = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k))
    chosen = launch_of("rope", heads * width)
    place = q if positions is None else positions.contiguous()
    strides = (s for x in (q, k, *outs) for s in x.stride()[:3])
    launching.launch(
        rope_kernel, (batch * length,), q, k, turns.contiguous(), place, *outs, length, width // 2, heads, k.shape[2],
        *strides, 0 if positions is None or positions.dim() == 1 else length,
        INVERSE=inverse, NEIGHBOURS=interleaved, POSITIONS=positions is not None,
        HEADS=min(chosen.rows, triton.next_power_of_2(heads)), PAIRS=triton.next_power_of_2(width // 2),
        num_warps=chosen.warps,
    )  # fmt: skip
