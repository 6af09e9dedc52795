"""SwiGLU feed-forward layer (Shazeer 2020): down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.swiglu.api import swiglu
from kernels.swiglu.gated_mlp import gated_mlp
from train.model.params import HubTensors, ParamSpec, parameter, same_tensor
from train.precision.product import Product, shaped
from train.spec import mup
from train.spec.activations import keeps_hidden
from train.spec.config import ModelConfig
from train.spec.counts import mlp_width

PLAIN: Product = F.linear
"""How a weight is applied where the precision does not say otherwise. A name of our own for torch's function: DeepSpeed
replaces torch's for the whole process, and what was chosen before would no longer be told as the plain one."""


class MLP(nn.Module):
    """Gate and up projection as one matrix product, then down.

    `gate_up` is (2, hidden, width), gate first. Tensor parallelism shards the hidden channels of both alike, and FSDP
    within it does so again. FSDP alone stores the same numbers in rows that its ranks share evenly
    (train.spec.shard_shapes).
    """

    def __init__(self, config: ModelConfig, hidden: int | None = None) -> None:
        """Make the layer with empty weights; hidden: channels, None: the model's."""
        super().__init__()
        width, hidden = config.width, hidden or mlp_width(config)
        gate_and_up = HubTensors(("mlp.gate_proj.weight", "mlp.up_proj.weight"), torch.unbind, _stacked)
        std = mup.matrix_std(config)
        self.gate_up = parameter(ParamSpec("matrix", (2, hidden, width), std, tp_dim=1, fsdp_dim=1, hub=gate_and_up))
        std, down = mup.residual_std(config), same_tensor("mlp.down_proj.weight")
        self.down = parameter(ParamSpec("matrix", (width, hidden), std, tp_dim=1, hub=down))
        self.keep = keeps_hidden(config)
        """Whether the gated product is kept for the backward pass."""
        self.linear: dict[str, Product] = {"gate_up": PLAIN, "down": PLAIN}
        """How each weight is applied; set by train.precision.float8."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for x (..., width)."""
        width = x.shape[-1]
        gate_up, down = shaped(self.gate_up, 2, -1, width), shaped(self.down, width, -1)
        first, second = self.linear["gate_up"], self.linear["down"]
        if first is PLAIN and second is PLAIN:
            return gated_mlp(x, gate_up, down, keep=self.keep)
        return second(swiglu(first(x, gate_up.flatten(0, 1)), fuse=False), down)


def _stacked(theirs: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(theirs))
