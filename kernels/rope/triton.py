"""Rotary embedding of queries and keys in one launch, a program a token, which reads its angles once for all heads.

Bytes for N tokens of H heads (queries and keys) of d numbers of b bytes: 2 N H d b, and 4 N d for the angles.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch_table import launch_of


@triton.jit
def _turn(
    x, out, cos, sin, heads, group, pairs, outer, inner, out_outer, out_inner,
    NEIGHBOURS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write (a cos - b sin, a sin + b cos) for all pairs (a, b) of one token: neighbours, or of the two halves."""
    pair = tl.arange(0, PAIRS)
    for first in range(0, heads, HEADS):
        head = first + tl.arange(0, HEADS)
        above, below = (head // group).to(tl.int64), (head % group).to(tl.int64)  # heads may lie a sequence apart
        start = (above * outer + below * inner)[:, None]
        goal = (above * out_outer + below * out_inner)[:, None]
        if NEIGHBOURS:
            number = tl.arange(0, 2 * PAIRS)
            held = (head[:, None] < heads) & (number < 2 * pairs)[None, :]
            both = tl.load(x + start + number[None, :], mask=held, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (HEADS, PAIRS, 2)))
            turned = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (HEADS, 2 * PAIRS))
            tl.store(out + goal + number[None, :], turned.to(out.dtype.element_ty), mask=held)
        else:
            held = (head[:, None] < heads) & (pair < pairs)[None, :]
            place = x + start + pair[None, :]
            a = tl.load(place, mask=held, other=0.0).to(tl.float32)
            b = tl.load(place + pairs, mask=held, other=0.0).to(tl.float32)
            goal = out + goal + pair[None, :]
            tl.store(goal, (a * cos - b * sin).to(out.dtype.element_ty), mask=held)
            tl.store(goal + pairs, (a * sin + b * cos).to(out.dtype.element_ty), mask=held)


@triton.jit
def rope_kernel(
    q, k, turns, positions, q_out, k_out, length, pairs, q_heads, q_group, k_heads, k_group,
    q_batch, q_token, q_outer, q_inner, k_batch, k_token, k_outer, k_inner,
    q_out_batch, q_out_token, q_out_outer, q_out_inner, k_out_batch, k_out_token, k_out_outer, k_out_inner,
    turns_batch, position_batch,
    INVERSE: tl.constexpr, NEIGHBOURS: tl.constexpr, POSITIONS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Turn one token's q (heads, 2 pairs) and k by turns[its position] (pairs, (cos, sin)), or back if INVERSE.

    Heads are counted over two axes, groups of `group` heads whose starts are `outer` apart and its heads `inner`.
    """
    token = tl.program_id(0)
    batch = (token // length).to(tl.int64)
    token = (token % length).to(tl.int64)
    position = token
    if POSITIONS:
        position = tl.load(positions + batch * position_batch + token)
    number = tl.arange(0, 2 * PAIRS)
    angle = turns + batch * turns_batch + position * (2 * pairs) + number
    cos, sin = tl.split(tl.reshape(tl.load(angle, mask=number < 2 * pairs, other=0.0), (1, PAIRS, 2)))
    if INVERSE:
        sin = -sin
    _turn(
        q + batch * q_batch + token * q_token, q_out + batch * q_out_batch + token * q_out_token, cos, sin,
        q_heads, q_group, pairs, q_outer, q_inner, q_out_outer, q_out_inner, NEIGHBOURS, HEADS, PAIRS,
    )  # fmt: skip
    _turn(
        k + batch * k_batch + token * k_token, k_out + batch * k_out_batch + token * k_out_token, cos, sin,
        k_heads, k_group, pairs, k_outer, k_inner, k_out_outer, k_out_inner, NEIGHBOURS, HEADS, PAIRS,
    )  # fmt: skip


def rope(
    q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None, outs: tuple[Tensor, Tensor],
    interleaved: bool, inverse: bool,
) -> None:  # fmt: skip
    """Fill outs from q and k (batch, length, [groups,] heads, head_dim), last axis dense.

    turns (positions, pairs, 2) or (batch, length, pairs, 2), fp32.
    """
    tensors = [_grouped(x if x.stride(-1) == 1 else x.contiguous()) for x in (q, k)] + [_grouped(x) for x in outs]
    batch, length, outer, inner, width = tensors[0].shape
    heads = outer * inner
    other = tensors[1].shape[2:4]
    chosen = launch_of("rope", heads * width)
    table = turns.contiguous()
    strides = (s for x in tensors for s in x.stride()[:4])
    launch.launch(
        rope_kernel, (batch * length,), tensors[0], tensors[1], table,
        tensors[0] if positions is None else positions.contiguous(), *tensors[2:], length, width // 2, heads, inner,
        other[0] * other[1], other[1], *strides, table.stride(0) if table.dim() == 4 else 0,
        0 if positions is None or positions.dim() == 1 else length,
        INVERSE=inverse, NEIGHBOURS=interleaved, POSITIONS=positions is not None,
        HEADS=min(chosen.rows, triton.next_power_of_2(heads)), PAIRS=triton.next_power_of_2(width // 2),
        num_warps=chosen.warps,
    )  # fmt: skip


def _grouped(x: Tensor) -> Tensor:
    """Return x with the heads on two axes; where there is one, each head is a group."""
    return x if x.dim() == 5 else x.unsqueeze(3)
