"""How the layers of experts of a step routed its tokens, over all ranks."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.spec.config import ModelConfig


def routing_metrics(modules: Iterable[Transformer], model: ModelConfig, mesh: Mesh) -> dict[str, Tensor]:
    """Return metrics of what was routed since the last call, scalars on the device; {} of dense models.

    balance_loss: added to what is trained on, with its weight [nats per trained token]. expert_load_max: tokens of the
    busiest expert of all layers over the mean of its layer. Every rank calls this.
    """
    sums = [taken for module in modules if (taken := module.routing.take()) is not None]
    if not sums:
        return {}
    whole = mesh.sum_tokens_(sums[0])
    loads, balance, counted = whole[:-2].view(-1, model.experts), whole[-2], whole[-1]
    return {
        "balance_loss": balance / counted.clamp(min=1.0),
        "expert_load_max": (loads.amax(1) / loads.mean(1)).max(),
    }
