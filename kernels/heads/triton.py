"""Queries, keys and values out of a joint product's rows: normed, turned and apart in one launch, and back in another.

A program takes a token, reads its angles once for all heads and has the whole row in hand, so that the product's
gradient is written as one tensor, where autograd would join three in a pass of its own. Bytes for N tokens of H heads
(queries, keys and values) of d numbers of b bytes: 2 N H d b each way, backward with norms 3 N H d b. The gradients of
the norms' weights are added up by programs that each walk over many tokens, in an order that is always the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.column_sums import column_sums
from kernels.core.launch import fp32
from kernels.core.launch_table import launch_of, multiprocessors


@triton.jit
def _angles(turns, token, length, pairs, turns_batch, PAIRS: tl.constexpr):
    """Return a token's cos and sin, (1, PAIRS) each."""
    number = tl.arange(0, 2 * PAIRS)
    place = turns + token // length * turns_batch + token % length * (2 * pairs) + number
    return tl.split(tl.reshape(tl.load(place, mask=number < 2 * pairs, other=0.0), (1, PAIRS, 2)))


@triton.jit
def _turned(x, cos, sin, HEADS: tl.constexpr, PAIRS: tl.constexpr):
    """Return (a cos - b sin, a sin + b cos) for all neighbours (a, b) of x (HEADS, 2 PAIRS)."""
    a, b = tl.split(tl.reshape(x, (HEADS, PAIRS, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (HEADS, 2 * PAIRS))


@triton.jit
def _place(head, number, per, group, shift, width):
    """Return where the numbers of a kind's heads lie in the joint row.

    Every key/value head has group + 2 places there; this kind takes `per` of them from the place `shift` on.
    """
    return (head // per * (group + 2) + head % per + shift) * width + number


@triton.jit
def _apart(
    row, out, weight, cos, sin, heads, per, group, shift, width, eps,
    NORM: tl.constexpr, TURN: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write one token's heads of one kind to out (heads, width) from where they lie in the joint row."""
    number = tl.arange(0, 2 * PAIRS)[None, :]
    if NORM:
        scale = tl.load(weight + number, mask=number < width, other=0.0).to(tl.float32)
    for first in range(0, heads, HEADS):
        head = (first + tl.arange(0, HEADS))[:, None]
        held = (head < heads) & (number < width)
        x = tl.load(row + _place(head, number, per, group, shift, width), mask=held, other=0.0)
        if NORM or TURN:
            x = x.to(tl.float32)
        if NORM:
            x = x * tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / width + eps) * scale
        if TURN:
            x = _turned(x, cos, sin, HEADS, PAIRS)
        tl.store(out + head * width + number, x.to(out.dtype.element_ty), mask=held)


@triton.jit
def _joined(
    grad, row, row_out, weight, cos, sin, shares, heads, per, group, shift, width, eps,
    NORM: tl.constexpr, TURN: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one token's heads of one kind to where they lie in the joint row.

    With NORM, for the gradient g turned back and x̂ the head over its root mean square r: (h - x̂ mean(h x̂)) / r,
    h = g · weight. Returns shares (HEADS, 2 PAIRS) plus g x̂, the heads' share of the weight's gradient.
    """
    number = tl.arange(0, 2 * PAIRS)[None, :]
    if NORM:
        scale = tl.load(weight + number, mask=number < width, other=0.0).to(tl.float32)
    for first in range(0, heads, HEADS):
        head = (first + tl.arange(0, HEADS))[:, None]
        held = (head < heads) & (number < width)
        place = _place(head, number, per, group, shift, width)
        g = tl.load(grad + head * width + number, mask=held, other=0.0)
        if NORM or TURN:
            g = g.to(tl.float32)
        if TURN:
            g = _turned(g, cos, -sin, HEADS, PAIRS)
        if NORM:
            x = tl.load(row + place, mask=held, other=0.0).to(tl.float32)
            inverse = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / width + eps)
            x *= inverse
            shares += g * x
            g *= scale
            g = inverse * (g - x * (tl.sum(g * x, 1, keep_dims=True) / width))
        tl.store(row_out + place, g.to(row_out.dtype.element_ty), mask=held)
    return shares


@triton.jit
def forward_kernel(
    joint, turns, query_weight, key_weight, q, k, v, tokens, length, group, kv_heads, width, turns_batch, eps,
    NORM: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write q (tokens, group · kv_heads, width), k and v (tokens, kv_heads, width) from joint rows."""
    eps = fp32(eps)
    token = tl.program_id(0).to(tl.int64)
    cos, sin = _angles(turns, token, length, width // 2, turns_batch, PAIRS)
    row = joint + token * (kv_heads * (group + 2) * width)
    query = q + token * (group * kv_heads * width)
    few = token * (kv_heads * width)
    _apart(
        row, query, query_weight, cos, sin, group * kv_heads, group, group, 0, width, eps, NORM, True, HEADS, PAIRS
    )  # fmt: skip
    _apart(row, k + few, key_weight, cos, sin, kv_heads, 1, group, group, width, eps, NORM, True, KEYS, PAIRS)
    _apart(row, v + few, key_weight, cos, sin, kv_heads, 1, group, group + 1, width, eps, False, False, KEYS, PAIRS)


@triton.jit
def backward_kernel(
    q, k, v, joint, turns, query_weight, key_weight, out, partial, tokens, length, group, kv_heads, width, turns_batch,
    eps, NORM: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of joint to out from those of q, k and v.

    partial (programs, 2, width) gets this program's share of the gradients of both norms' weights.
    """
    eps = fp32(eps)
    shares = tl.zeros((HEADS, 2 * PAIRS), tl.float32)
    key_shares = tl.zeros((KEYS, 2 * PAIRS), tl.float32)
    for number in range(tl.program_id(0), tokens, tl.num_programs(0)):
        token = tl.full((), number, tl.int64)
        cos, sin = _angles(turns, token, length, width // 2, turns_batch, PAIRS)
        start = token * (kv_heads * (group + 2) * width)
        query = q + token * (group * kv_heads * width)
        few = token * (kv_heads * width)
        shares = _joined(
            query, joint + start, out + start, query_weight, cos, sin, shares, group * kv_heads, group, group, 0, width,
            eps, NORM, True, HEADS, PAIRS,
        )  # fmt: skip
        key_shares = _joined(
            k + few, joint + start, out + start, key_weight, cos, sin, key_shares, kv_heads, 1, group, group, width,
            eps, NORM, True, KEYS, PAIRS,
        )  # fmt: skip
        _joined(
            v + few, joint + start, out + start, key_weight, cos, sin, key_shares, kv_heads, 1, group, group + 1, width,
            eps, False, False, KEYS, PAIRS,
        )  # fmt: skip
    if NORM:
        column = tl.arange(0, 2 * PAIRS)
        goal = partial + tl.program_id(0) * (2 * width) + column
        tl.store(goal, tl.sum(shares, 0), mask=column < width)
        tl.store(goal + width, tl.sum(key_shares, 0), mask=column < width)


def forward(
    joint: Tensor, turns: Tensor, weights: tuple[Tensor, Tensor] | None, eps: float, outs: tuple[Tensor, ...]
) -> None:
    """Fill outs, q, k and v, from joint (batch, length, kv_heads, group + 2, head_dim), all contiguous.

    turns (positions, pairs, 2) or (batch, length, pairs, 2), fp32. weights: of the norms of queries and keys.
    """
    sizes, meta, _ = _plan(joint, turns, weights, "heads")
    both = _weights(joint, weights)
    launch.launch(forward_kernel, (sizes[0],), joint, turns.contiguous(), *both, *outs, *sizes, float(eps), **meta)


def backward(
    grads: tuple[Tensor, ...], joint: Tensor, turns: Tensor, weights: tuple[Tensor, Tensor] | None, eps: float,
    out: Tensor,
) -> Tensor:  # fmt: skip
    """Fill out, shaped as joint, from the gradients of q, k and v; return those of the weights, (2, head_dim) fp32.

    Without weights joint is only asked for its shape, and what is returned is empty.
    """
    sizes, meta, programs = _plan(joint, turns, weights, "heads_backward")
    partial = torch.empty((programs, 2, joint.shape[-1]), dtype=torch.float32, device=out.device) if weights else None
    launch.launch(
        backward_kernel, (programs,), *grads, out if weights is None else joint, turns.contiguous(),
        *_weights(out, weights), out, out if partial is None else partial, *sizes, float(eps), **meta,
    )  # fmt: skip
    return out.new_empty((0, joint.shape[-1]), dtype=torch.float32) if partial is None else column_sums(partial)


def _weights(instead: Tensor, weights: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    return (instead, instead) if weights is None else (weights[0].contiguous(), weights[1].contiguous())


def _plan(
    joint: Tensor, turns: Tensor, weights: object, kernel: str
) -> tuple[tuple[int, ...], dict[str, int | bool], int]:
    """Return the kernels' sizes, tokens first, their constants, and how many programs walk over tokens."""
    batch, length, kv_heads, places, width = joint.shape
    tokens, group = batch * length, places - 2
    chosen = launch_of(kernel, kv_heads * width)
    heads, pairs = min(chosen.rows, triton.next_power_of_2(group * kv_heads)), triton.next_power_of_2(width // 2)
    meta = {
        "NORM": weights is not None,
        "HEADS": heads,
        "KEYS": min(chosen.rows, triton.next_power_of_2(kv_heads)),
        "PAIRS": pairs,
        # A warp holds 1,024 numbers of each of its tensors: shared keys may have many queries.
        "num_warps": max(chosen.warps, 2 * heads * pairs // 1024),
    }
    programs = min(tokens, chosen.programs * multiprocessors(joint.device)) if weights is not None else tokens
    turns_batch = turns.shape[1] * width if turns.dim() == 4 else 0
    return (tokens, length, group, kv_heads, width, turns_batch), meta, programs
