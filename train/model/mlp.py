"""SwiGLU feed-forward layer (Shazeer 2020): down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.sharding import local
from kernels.swiglu import swiglu
from train.model.weights import Product
from train.spec.config import ModelConfig
from train.spec.counts import mlp_width


class MLP(nn.Module):
    """Gate and up projection as one matrix product, then down.

    `gate_up` is (2, hidden, width), gate first: a tensor-parallel rank holds the same hidden channels of both.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = mlp_width(config)
        self.gate_up = nn.Parameter(torch.empty(2, hidden, config.width))
        self.down = nn.Parameter(torch.empty(config.width, hidden))
        self.linear: dict[str, Product] = {"gate_up": F.linear, "down": F.linear}
        """How each weight is applied; set by train.precision.fp8."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for x (..., width)."""
        weight, first, second = local(self.gate_up), self.linear["gate_up"], self.linear["down"]
        if torch.compiler.is_compiling() and x.device.type != "cpu" and first is F.linear:
            return second(swiglu(*both(x, weight)), local(self.down))
        return second(swiglu(first(x, weight.flatten(0, 1)), fuse=False), local(self.down))


def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (..., width) times gate and up, weight (2, hidden, width), under autocast in its format.

    One product forward. Backward the gradients of gate and up come in two tensors and go into two products: to join
    them first is a pass of its own over the largest tensor of a block, which a compiler cannot fuse away.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    with torch.autocast(device, enabled=False):
        rows = x.reshape(-1, x.shape[-1]).to(dtype)
        gate, up = _Both.apply(rows, weight.to(dtype))  # type: ignore[no-untyped-call]
    return gate.view(*x.shape[:-1], -1), up.view(*x.shape[:-1], -1)


class _Both(torch.autograd.Function):
    """Rows (tokens, width) and weight (2, hidden, width) to gate and up, (tokens, hidden) each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        gate, up = (x @ weight.flatten(0, 1).t()).chunk(2, dim=-1)
        return gate, up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gate, up = grads
        grad_weight = torch.stack((gate.t() @ x, up.t() @ x))
        return torch.addmm(gate @ weight[0], up, weight[1]), grad_weight
