"""Rotary position embedding (Su et al. 2021): channel pairs of queries and keys turned by position times frequency."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.registration import define, fake


def rope(
    q: Tensor,
    k: Tensor,
    turns: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = True,
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return q (batch, length, heads, head_dim) and k (batch, length, kv_heads, head_dim) turned, in their dtype.

    Heads may be on two axes, (…, groups, heads, head_dim). turns: e^(i · position · frequency), complex (positions,
    head_dim / 2), or its (…, 2) real view. `positions` int64 (length,) or (batch, length) says which row each token
    takes; by default the first takes the first. Or turns (batch, length, head_dim / 2) for each token its own. Pairs
    are neighbours (2i, 2i + 1) if `interleaved`, else (i, i + head_dim / 2). Computed in fp32. `in_place` overwrites q
    and k. Raises ValueError for shapes or dtypes that do not fit.
    """
    table = torch.view_as_real(turns) if turns.is_complex() else turns
    _check(q, k, table, positions)
    refusal = "" if q.numel() and k.numel() else "an empty tensor"
    if not use_triton("rope", q, k, refusal=refusal, fuse=True):
        turned = reference(q, k, table, positions, interleaved)
        return (q.copy_(turned[0]), k.copy_(turned[1])) if in_place else turned
    result: tuple[Tensor, Tensor] = _Rope.apply(  # type: ignore[no-untyped-call]
        q, k, table.to(torch.float32), positions, interleaved, in_place
    )
    return result


def reference(
    q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Return the same in plain torch; turns real, (positions, head_dim / 2, 2) or (batch, length, head_dim / 2, 2)."""
    taken = turns[positions] if positions is not None else turns if turns.dim() == 4 else turns[: q.shape[1]]
    if interleaved and q.device.type == "cpu" and not torch.compiler.is_compiling():
        # Pairs read as complex numbers: one multiplication each way, where halves would need slices and a join.
        factor = torch.view_as_complex(taken.contiguous())
        return _as_complex(q, _over_heads(factor, q, 1)), _as_complex(k, _over_heads(factor, k, 1))
    turn = _PlainRope.apply
    return turn(q, _over_heads(taken, q, 2), interleaved), turn(k, _over_heads(taken, k, 2), interleaved)  # type: ignore[no-untyped-call]


def _over_heads(taken: Tensor, x: Tensor, last: int) -> Tensor:
    """Return what each token takes, with axes of length 1 for x's heads before the `last` axes."""
    heads = [1] * (x.dim() - 3)
    return taken.view(*taken.shape[:-last], *heads, *taken.shape[-last:])


def _as_complex(x: Tensor, factor: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs = torch.view_as_complex(wide.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factor).flatten(-2).to(x.dtype)


class _PlainRope(torch.autograd.Function):
    """The rotation in real arithmetic. Its gradient is the rotation back, which compilers make one kernel of; what
    autograd makes of stacking and unbinding takes them four times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, taken: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(taken)
        ctx.interleaved = interleaved
        return _as_real(x, taken, interleaved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (taken,) = ctx.saved_tensors
        back = torch.stack((taken[..., 0], -taken[..., 1]), -1)
        return _as_real(grads[0], back, ctx.interleaved), None, None


def _as_real(x: Tensor, taken: Tensor, interleaved: bool) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = taken.unbind(-1)
    if not interleaved:
        a, b = wide.chunk(2, -1)
        joined = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        # Without a cast to the dtype that it has: behind one, Dynamo of torch 2.11 loses the gradient without a word.
        return joined if joined.dtype == x.dtype else joined.to(x.dtype)
    # Each of a pair by itself, from both: compilers fuse that into whatever takes the result, which they do not do
    # with a pair that is put together.
    pairs: Tensor = wide.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call, unused-ignore]
    sign = 2 * torch.arange(2, device=x.device, dtype=wide.dtype) - 1
    turned = pairs * cos.unsqueeze(-1) + pairs.flip(-1) * (sin.unsqueeze(-1) * sign)
    # A copy, which compilers fuse: the flattened view itself, which it would be in fp32, loses its gradient likewise.
    return turned.flatten(-2).to(x.dtype, copy=True)


def _check(q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None) -> None:
    if not {q.dim(), k.dim()} <= {4, 5} or k.shape[:2] != q.shape[:2] or k.shape[-1] != q.shape[-1] or q.shape[-1] % 2:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}: must be (batch, length, [groups,] heads, head_dim) with one "
            "batch, length and even head_dim"
        )
    pairs = q.shape[-1] // 2
    if turns.dim() == 4 and positions is None and turns.shape == (*q.shape[:2], pairs, 2):
        return
    if turns.dim() != 3 or turns.shape[1:] != (pairs, 2):
        raise ValueError(
            f"turns {tuple(turns.shape)}: must be (positions, {pairs}) complex or (…, 2) real, or (batch, length, "
            f"{pairs}) without positions"
        )
    if positions is None and len(turns) < q.shape[1]:
        raise ValueError(f"turns of {len(turns)} positions: must be at least the length, {q.shape[1]}")
    if positions is not None and (positions.dtype != torch.int64 or positions.shape not in {q.shape[:2], q.shape[1:2]}):
        raise ValueError(
            f"positions {tuple(positions.shape)} of {positions.dtype}: must be int64 (length,) or (batch, length), "
            f"here {tuple(q.shape[:2])}"
        )


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None, interleaved: bool, in_place: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(turns, positions)
        ctx.interleaved = interleaved
        if in_place:
            _turn_in_place(q, k, turns, positions, interleaved, False)
            ctx.mark_dirty(q, k)
            return q, k
        result: tuple[Tensor, Tensor] = _turned(q, k, turns, positions, interleaved, False)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        turns, positions = ctx.saved_tensors
        grad_q, grad_k = _turned(*grads, turns, positions, ctx.interleaved, True)
        return grad_q, grad_k, None, None, None, None


@define("rope(Tensor q, Tensor k, Tensor turns, Tensor? positions, bool interleaved, bool inverse) -> (Tensor, Tensor)")
def _turned(
    q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None, interleaved: bool, inverse: bool
) -> tuple[Tensor, Tensor]:
    from kernels.rope.triton import rope as run

    outs = q.new_empty(q.shape), k.new_empty(k.shape)
    run(q, k, turns, positions, outs, interleaved, inverse)
    return outs


@fake(_turned)
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


@define("rope_(Tensor(a!) q, Tensor(b!) k, Tensor turns, Tensor? positions, bool interleaved, bool inverse) -> ()")
def _turn_in_place(
    q: Tensor, k: Tensor, turns: Tensor, positions: Tensor | None, interleaved: bool, inverse: bool
) -> None:
    from kernels.rope.triton import rope as run

    if q.stride(-1) != 1 or k.stride(-1) != 1:
        raise ValueError("in_place=True: needs q and k whose last axis is dense")
    run(q, k, turns, positions, (q, k), interleaved, inverse)


@fake(_turn_in_place)
def _(*_: Any) -> None:
    return None
