"""How the layers of experts of a step routed its tokens, over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from train.model.moe import MoE
from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.spec.config import ModelConfig


def routing_metrics(modules: Iterable[Transformer], model: ModelConfig, mesh: Mesh) -> dict[str, Tensor]:
    """Return metrics of what was routed since the last call, scalars on the device; {} of dense models.

    balance_loss: added to what is trained on, with its weight [nats per trained token]. expert_load_max: tokens of the
    busiest expert of all layers over the mean of its layer, trained ones alone. Every rank calls this.
    """
    parts = [taken for module in modules if (taken := module.routing.take()) is not None]
    if not parts:
        return {}
    balance = torch.stack([part[-2] for part in parts]).sum()
    whole = mesh.sum_tokens_(torch.cat([*(part[:-2] for part in parts), balance[None], parts[0][-1:]]))
    loads, counted = whole[:-2].view(-1, model.experts), whole[-1]
    busiest = (loads.amax(1) / loads.mean(1).clamp(min=1.0 / model.experts)).max()
    return {
        "balance_loss": mesh.over_stages_(whole[-2] / counted.clamp(min=1.0)),
        "expert_load_max": mesh.over_stages_(busiest, largest=True),
    }


@torch.no_grad()
def move_biases(modules: Sequence[Transformer], model: ModelConfig, mesh: Mesh, skip: Tensor) -> None:
    """Move the bias of every expert by the step's load, on all ranks alike; a skipped step (not 0) leaves it.

    Up by model.router_bias_speed where fewer trained tokens came than to the mean expert of its layer, else down, by
    the sign of the difference (Wang et al. 2024, algorithm 1). Every rank calls this.
    """
    if not model.router_bias_speed:
        return
    counted = [taken for module in modules if (taken := module.routing.of_step) is not None]
    loads = mesh.sum_tokens_(torch.cat(counted).double()).view(-1, model.experts)
    steps = model.router_bias_speed * (loads.mean(1, keepdim=True) - loads).sign()
    steps = torch.where(skip.to(steps.device) != 0, torch.zeros_like(steps), steps)
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, MoE)]
    for layer, step in zip(layers, steps.float(), strict=True):
        assert layer.bias is not None
        layer.bias.add_(step)
