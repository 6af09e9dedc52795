"""Expert parallelism: ranks share the experts, and tokens go to them and come back (Lepikhin et al. 2020, "GShard").

The ranks of `ep` are neighbours of those over which FSDP2 cuts the weights (dp_shard x cp). Each has an equal part of
every layer's experts, of which FSDP2 cuts the rest over the other ranks, those that are `ep` apart; all other weights
stay cut over all of them. Tokens are different on every rank, as with data parallelism: a layer sends each token's row
to the ranks of its experts and takes back what they made of it, by an all-to-all each way, of as many rows as were
chosen. No row is dropped or padded, so the host has to know how many come before they can: each layer waits for that.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from train.model.moe import Experts, MoE, reordered
from train.model.transformer import Transformer
from train.parallel.collectives import exchanged, swapped
from train.parallel.mesh import Mesh
from train.parallel.tensor import part_on


def share_experts(module: Transformer, mesh: Mesh) -> None:
    """Give every rank of ep its part of the experts of a module on the meta device, and let their rows come to them."""
    assert mesh.experts is not None
    view, group = mesh.experts["ep"], mesh.group("ep")
    for layer in expert_layers(module):
        experts = layer.experts
        for name, weight in list(experts.named_parameters()):
            setattr(experts, name, nn.Parameter(part_on(view, weight, Shard(0))))
        experts.count //= group.size()
        layer.exchange = Exchange(group)


def expert_layers(module: Transformer) -> list[MoE]:
    """Return the layers of experts of a module."""
    return [layer for layer in module.modules() if isinstance(layer, MoE)]


class Exchange:
    """Sends rows to the ranks of their experts, and back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, group.size()

    def __call__(self, rows: Tensor, load: Tensor, experts: Experts) -> Tensor:
        """Return what their experts make of rows (rows, width), by expert of all ranks; load (experts,): of each."""
        sent = load.to(torch.int64).view(self.ranks, -1)
        arriving = swapped(sent, self.group)
        there, here = self.sizes(sent, arriving, len(rows))
        arrived = exchanged(rows, there, here, self.group)
        order, back = _by_expert(arriving, len(arrived))
        ends = arriving.sum(0).cumsum(0).to(torch.int32)
        made = experts(reordered(arrived, order, back), ends)
        return exchanged(reordered(made, back, order), here, there, self.group)

    @staticmethod
    def sizes(sent: Tensor, arriving: Tensor, rows: int) -> tuple[list[int], list[int]]:
        """Return how many of `rows` rows go to each rank, and how many come from each: the host waits for both."""
        there, here = torch.stack((sent.sum(1), arriving.sum(1))).tolist()
        return there, here


def _by_expert(arriving: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the order of rows, which come by rank and expert, by expert alone, and where each of them went."""
    ranks, experts = arriving.shape
    numbers = torch.arange(experts, device=arriving.device).repeat(ranks)
    order = numbers.repeat_interleave(arriving.flatten(), output_size=rows).argsort(stable=True)
    places = torch.arange(rows, device=arriving.device)
    return order, torch.empty_like(order).scatter_(0, order, places)
