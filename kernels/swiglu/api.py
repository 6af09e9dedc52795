"""SwiGLU (Shazeer 2020): silu(gate) * up, gate and up apart or as the halves of one tensor's last axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.dtensor import rowwise, use_dtensor
from kernels.core.registration import define, fake


def swiglu(gate: Tensor, up: Tensor | None = None, *, fuse: bool = True) -> Tensor:
    """Return silu(gate) * up (…, hidden); without `up`, gate is (…, 2 hidden) and its second half is up.

    Both of one float dtype; computed in fp32 by the kernel. The backward pass makes the sigmoid again. `fuse` leaves it
    to a compiler where there is one, which is as fast but for the gradient of halves that are to be joined. Raises
    ValueError for shapes or dtypes that do not fit.
    """
    if up is None and (gate.dim() < 1 or gate.shape[-1] % 2):
        raise ValueError(f"gate {tuple(gate.shape)}: needs an even last axis, gate and up, or give `up`")
    if up is not None and (up.shape != gate.shape or up.dtype != gate.dtype or up.device != gate.device):
        raise ValueError(
            f"up {tuple(up.shape)} of {up.dtype} on {up.device}: must be as gate, {tuple(gate.shape)} of {gate.dtype} "
            f"on {gate.device}"
        )
    refusal = "" if gate.dim() and gate.shape[-1] else "an empty last axis"
    if not use_triton("swiglu", gate, refusal=refusal, fuse=fuse):
        first, second = gate.chunk(2, dim=-1) if up is None else (gate, up)
        return F.silu(first) * second
    use_dtensor(gate)
    result: Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return result


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor | None) -> Tensor:
        ctx.packed = up is None
        ctx.save_for_backward(*([gate] if up is None else [gate, up]))
        result: Tensor = swiglu_packed(gate) if up is None else _apart(gate, up)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.packed:
            return _packed_backward(grads[0], *ctx.saved_tensors), None
        both: tuple[Tensor, Tensor] = _apart_backward(grads[0], *ctx.saved_tensors)
        return both


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return views (rows, hidden) of both halves of x (…, 2 hidden)."""
    flat = x.reshape(-1, x.shape[-1])
    hidden = flat.shape[1] // 2
    return flat[:, :hidden], flat[:, hidden:]


@define("swiglu(Tensor gate, Tensor up) -> Tensor")
def _apart(gate: Tensor, up: Tensor) -> Tensor:
    from kernels.swiglu.triton import forward

    out = gate.new_empty(gate.shape)
    columns = gate.shape[-1]
    forward(gate.reshape(-1, columns), up.reshape(-1, columns), out.view(-1, columns))
    return out


@fake(_apart)
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


@define("swiglu_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)")
def _apart_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    from kernels.swiglu.triton import backward

    grads = gate.new_empty(gate.shape), up.new_empty(up.shape)
    backward(*(x.reshape(-1, gate.shape[-1]) for x in (grad, gate, up, *grads)))
    return grads


@fake(_apart_backward)
def _(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


@define("swiglu_packed(Tensor gate_up) -> Tensor")
def swiglu_packed(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up (…, hidden) of gate_up (…, 2 hidden) by the kernel, without a gradient."""
    from kernels.swiglu.triton import forward

    out = gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))
    forward(*halves(gate_up), out.view(-1, out.shape[-1]))
    return out


@fake(swiglu_packed)
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


@define("swiglu_packed_backward(Tensor grad, Tensor gate_up) -> Tensor")
def _packed_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    from kernels.swiglu.triton import backward

    out = gate_up.new_empty(gate_up.shape)
    backward(grad.reshape(-1, grad.shape[-1]), *halves(gate_up), *halves(out))
    return out


@fake(_packed_backward)
def _(grad: Tensor, gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape)


rowwise(_apart, "ss", "s")
rowwise(_apart_backward, "sss", "ss")
rowwise(swiglu_packed, "s", "s")
rowwise(_packed_backward, "ss", "s")
