"""From one product of queries, keys and values to what attention takes: normed per head, turned, and apart.

With neighbouring channel pairs (Su et al. 2021) and, where weights are given, root-mean-square norms of queries and
keys before (Henry et al. 2020). One pass over memory each way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.registration import define, fake
from kernels.rms_norm.api import rms_norm
from kernels.rope.api import rope

Norms = tuple[Tensor, Tensor]
"""The weights of the norms of queries and keys, (head_dim,) each."""


def split_heads(
    joint: Tensor, turns: Tensor | None, norms: Norms | None = None, eps: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q (batch, length, group · kv_heads, head_dim), k and v (batch, length, kv_heads, head_dim).

    joint (batch, length, kv_heads, group + 2, head_dim): for each key/value head its queries, its key, its value.
    turns: e^(i · position · frequency), complex (positions, head_dim / 2) or for each token its own (batch, length,
    head_dim / 2), or its (…, 2) real view; None: no rotation. norms: queries and keys are normed first, with `eps`.
    Raises ValueError for shapes that do not fit.
    """
    _check(joint, turns, norms)
    table = torch.view_as_real(turns) if turns is not None and turns.is_complex() else turns
    refusal = "no rotation" if table is None else "" if joint.numel() else "an empty tensor"
    if not use_triton("split_heads", joint, *(norms or ()), refusal=refusal):
        return reference(joint, turns, norms, eps)
    weights = (None, None) if norms is None else norms
    result: tuple[Tensor, Tensor, Tensor] = _SplitHeads.apply(joint, table, *weights, eps)  # type: ignore[no-untyped-call]
    return result


def reference(joint: Tensor, turns: Tensor | None, norms: Norms | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same by one operation after the other."""
    q, k, v = torch.split(joint, [joint.shape[3] - 2, 1, 1], dim=3)
    k, v = k.squeeze(3), v.squeeze(3)
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    if turns is not None:
        q, k = rope(q, k, turns)
    # As a part of the product's result it would keep all of that for the backward pass.
    return q.flatten(2, 3), k, v if v.device.type == "cpu" else v.contiguous()


def _check(joint: Tensor, turns: Tensor | None, norms: Norms | None) -> None:
    if joint.dim() != 5 or joint.shape[3] < 3:
        raise ValueError(
            f"joint {tuple(joint.shape)}: must be (batch, length, kv_heads, group + 2, head_dim), a group of at least 1"
        )
    width = joint.shape[-1]
    for weight in norms or ():
        if weight.shape != (width,):
            raise ValueError(f"norms of {tuple(weight.shape)}: must be ({width},) for head_dim {width}")
    if turns is None:
        return
    shape = (*turns.shape, 2) if turns.is_complex() else tuple(turns.shape)
    own = len(shape) == 4 and shape[:2] == joint.shape[:2]
    if width % 2 or shape[-2:] != (width // 2, 2) or not (own or (len(shape) == 3 and shape[0] >= joint.shape[1])):
        raise ValueError(
            f"turns {tuple(turns.shape)} of {turns.dtype}: must be complex (positions, {width // 2}), at least "
            f"{joint.shape[1]} positions, or {(*joint.shape[:2], width // 2)}, or its (…, 2) real view"
        )


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joint: Tensor, turns: Tensor, query_weight: Tensor | None, key_weight: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Only norms need what went in; otherwise it is free as soon as it is apart.
        ctx.save_for_backward(None if query_weight is None else joint, turns, query_weight, key_weight)
        ctx.eps, ctx.places = eps, joint.shape[3]
        result: tuple[Tensor, Tensor, Tensor] = _split(joint, turns, query_weight, key_weight, eps)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        joint, turns, query_weight, key_weight = ctx.saved_tensors
        grad, weights = _split_backward(*grads, joint, turns, query_weight, key_weight, ctx.places, ctx.eps)
        if query_weight is None:
            return grad, None, None, None, None
        return grad, None, weights[0].to(query_weight.dtype), weights[1].to(key_weight.dtype), None


@define(
    "split_heads(Tensor joint, Tensor turns, Tensor? query_weight, Tensor? key_weight, float eps)"
    " -> (Tensor, Tensor, Tensor)"
)
def _split(
    joint: Tensor, turns: Tensor, query_weight: Tensor | None, key_weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from kernels.heads.triton import forward

    outs = _room(joint)
    forward(joint.contiguous(), turns.float(), _both(query_weight, key_weight), eps, outs)
    return outs


def _room(joint: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, kv_heads, places, width = joint.shape
    k, v = (joint.new_empty((batch, length, kv_heads, width)) for _ in range(2))
    return joint.new_empty((batch, length, kv_heads * (places - 2), width)), k, v


fake(_split)(_room)


@define(
    "split_heads_backward(Tensor q, Tensor k, Tensor v, Tensor? joint, Tensor turns, Tensor? query_weight,"
    " Tensor? key_weight, int places, float eps) -> (Tensor, Tensor)"
)
def _split_backward(
    q: Tensor, k: Tensor, v: Tensor, joint: Tensor | None, turns: Tensor, query_weight: Tensor | None,
    key_weight: Tensor | None, places: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from kernels.heads.triton import backward

    out = k.new_empty((*k.shape[:3], places, k.shape[3]))
    grads = (q.contiguous(), k.contiguous(), v.contiguous())
    given = out if joint is None else joint.contiguous()
    return out, backward(grads, given, turns.float(), _both(query_weight, key_weight), eps, out)


@fake(_split_backward)
def _(
    q: Tensor, k: Tensor, v: Tensor, joint: Tensor | None, turns: Tensor, query_weight: Tensor | None,
    key_weight: Tensor | None, places: int, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    weights = k.new_empty((0 if query_weight is None else 2, k.shape[3]), dtype=torch.float32)
    return k.new_empty((*k.shape[:3], places, k.shape[3])), weights


def _both(query_weight: Tensor | None, key_weight: Tensor | None) -> Norms | None:
    return None if query_weight is None or key_weight is None else (query_weight, key_weight)
