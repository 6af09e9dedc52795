"""A SwiGLU feed-forward layer (Shazeer 2020) that keeps one tensor of its hidden width, not three.

Of gate, up and their gated product a backward pass needs all; the last is made again on the way to the gradients of the
others, which cost more reading than it does. Both gradients are written as one tensor, so that each weight and the
layer's input take one matrix product. Narrow layers, whose products wait for memory, are faster if they keep it: then
the gradients of gate and up are made as the product before them leaves its kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.flop_counts import flops, tell_counters
from kernels.core.registration import define, fake
from kernels.swiglu.api import halves, swiglu, swiglu_packed


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor, *, keep: bool = False) -> Tensor:
    """Return (silu(x · gateᵀ) * (x · upᵀ)) · downᵀ, (…, out), in x's dtype, under autocast in autocast's.

    x (…, width), gate_up (2, hidden, width), gate first, down (out, hidden). `keep` the gated product for the backward
    pass, hidden numbers a token, rather than make it again. Raises ValueError for shapes that do not fit.
    """
    if gate_up.dim() != 3 or len(gate_up) != 2 or gate_up.shape[2] != x.shape[-1] or down.shape[-1] != gate_up.shape[1]:
        raise ValueError(
            f"gate_up {tuple(gate_up.shape)}, down {tuple(down.shape)}: must be (2, hidden, {x.shape[-1]}) and "
            f"(out, hidden) for x {tuple(x.shape)}"
        )
    first = gate_up.flatten(0, 1)
    refusal = "" if x.numel() and gate_up.shape[1] else "an empty tensor"
    if not use_triton("gated_mlp", x, gate_up, down, refusal=refusal):
        return F.linear(swiglu(F.linear(x, first)), down)
    tell_counters()
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    with torch.autocast(device, enabled=False):
        rows = x.reshape(-1, x.shape[-1]).to(dtype)
        result: Tensor = _GatedMLP.apply(rows, first.to(dtype), down.to(dtype), keep)  # type: ignore[no-untyped-call]
    return result.view(*x.shape[:-1], -1)


class _GatedMLP(torch.autograd.Function):
    """Rows (tokens, width) and weights (2 hidden, width) and (out, hidden) to (tokens, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, down: Tensor, keep: bool) -> Tensor:
        joint = x @ first.t()
        hidden = swiglu_packed(joint)
        ctx.save_for_backward(x, joint, first, down, hidden if keep else None)
        result: Tensor = hidden @ down.t()
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, joint, first, down, hidden = ctx.saved_tensors
        (grad,) = grads
        if hidden is None:
            grad_joint, hidden = _backward_again(grad @ down, joint)
        else:
            grad_joint = _backward_behind(grad, down, joint)
        return grad_joint @ first, grad_joint.t() @ x, grad.t() @ hidden, None


@define("swiglu_packed_backward_again(Tensor grad, Tensor gate_up) -> (Tensor, Tensor)")
def _backward_again(grad: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of packed rows (tokens, 2 hidden) and what the forward pass gave, (tokens, hidden)."""
    from kernels.swiglu.triton import backward

    out, again = gate_up.new_empty(gate_up.shape), grad.new_empty(grad.shape)
    backward(grad, *halves(gate_up), *halves(out), again)
    return out, again


@fake(_backward_again)
def _(grad: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    return gate_up.new_empty(gate_up.shape), grad.new_empty(grad.shape)


@define("gated_mlp_backward(Tensor grad, Tensor down, Tensor gate_up) -> Tensor")
def _backward_behind(grad: Tensor, down: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of packed rows (tokens, 2 hidden) from that of the layer's result, (tokens, out)."""
    from kernels.swiglu.triton import backward
    from kernels.swiglu.triton_product import fits, gradient

    grad, out = grad.contiguous(), gate_up.new_empty(gate_up.shape)
    if fits(grad, down, gate_up):
        gradient(grad, down, gate_up, out)
    else:
        backward(grad @ down, *halves(gate_up), *halves(out))
    return out


@fake(_backward_behind)
def _(grad: Tensor, down: Tensor, gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape)


@flops(_backward_behind)
def _backward_behind_flops(grad: Any, down: Any, *_: Any, **__: Any) -> int:
    return int(2 * grad[0] * down[0] * down[1])
