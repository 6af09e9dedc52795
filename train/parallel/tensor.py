"""Tensor parallelism with sequence parallelism (Korthikanti et al. 2022) and a vocabulary cut over ranks.

Each rank holds some key/value heads with their queries, some hidden channels and some rows of the vocabulary
(`ParamSpec.tp_dim`). The residual stream is sharded along the sequence: an all-gather before attention, MLP and head
gives them the whole sequence, and a reduce-scatter after embedding, attention and MLP sums their outputs over ranks and
shards them again. In the backward pass each becomes the other.

Weights are DTensors, so that FSDP, checkpoints and the gradient norm know what is where; the arithmetic is on their
local parts (kernels.core.dtensor.local).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from train.model.transformer import Block, Transformer
from train.parallel.collectives import gather, scatter
from train.parallel.mesh import Mesh


def shard(module: Transformer, mesh: Mesh, overlap: bool = False) -> None:
    """Shard a module on the meta device over the ranks of tp, and set the hooks that gather and scatter.

    overlap: asynchronous tensor parallelism (Wang et al. 2024). Where Inductor finds an all-gather before a matrix
    product, or a reduce-scatter after one, it splits the product into pieces that run while others are sent, over
    symmetric memory.
    """
    assert mesh.weights is not None
    view, group = mesh.weights["tp"], mesh.group("tp")
    if overlap:
        _overlap(group)
    for name, weight in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        dim = module.specs[name].tp_dim
        where = Replicate() if dim is None else Shard(dim)
        setattr(module.get_submodule(owner), leaf, nn.Parameter(part_on(view, weight, where)))
    if module.embedding is not None:
        module.embedding.lookup = _Lookup(group)
    for block in module.blocks.values():
        assert isinstance(block, Block)
        heads = block.attention.query_heads // group.size()
        block.attention.rule = replace(block.attention.rule, first_head=heads * group.rank())
        for layer in (block.attention, block.mlp):
            layer.register_forward_pre_hook(_Before(group))
            layer.register_forward_hook(_After(group))
    if module.output is not None:
        module.output.group = group
        module.output.register_forward_pre_hook(_Before(group))


def finish(module: nn.Module, mesh: Mesh) -> None:
    """All-reduce the gradients of weights that every rank of tp holds whole (norms), once a step and in one message.

    Each rank applies them to its part of the sequence, or to its heads, and so has a part of their gradients.
    """
    parts = [_local_gradient(w) for w in module.parameters() if w.grad is not None and _whole_on_tp(w)]
    if not parts:
        return
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat, group=mesh.group("tp"))
    for part, summed in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
        part.copy_(summed.view_as(part))


def _overlap(group: dist.ProcessGroup) -> None:
    import torch._inductor.config as inductor
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    inductor._micro_pipeline_tp = True
    enable_symm_mem_for_group(group.group_name)


def part_on(view: DeviceMesh, weight: Tensor, where: Placement) -> DTensor:
    """Return a weight of the meta device as a DTensor, of which this rank has its part along one axis, or all."""
    shape = list(weight.shape)
    if isinstance(where, Shard):
        shape[where.dim] //= view.size()
    part = torch.empty(shape, dtype=weight.dtype, device=weight.device)
    return DTensor.from_local(part, view, [where], run_check=False, shape=weight.shape, stride=weight.stride())


def _whole_on_tp(weight: Tensor) -> bool:
    if not isinstance(weight, DTensor):
        return False
    names = weight.device_mesh.mesh_dim_names or ()
    return "tp" in names and weight.placements[names.index("tp")].is_replicate()


def _local_gradient(weight: Tensor) -> Tensor:
    assert isinstance(weight.grad, DTensor)
    return weight.grad.to_local()


class _Before:
    """Forward pre-hook: give the layer all of the sequence."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (gather(inputs[0], self.group), *inputs[1:])


class _After:
    """Forward hook: sum the layer's outputs over ranks and keep this rank's part of the sequence."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return scatter(output, self.group)


class _Lookup:
    """Embedding lookup in this rank's rows of the vocabulary; tokens of other ranks' rows add zeros."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, tokens: Tensor, rows: Tensor) -> Tensor:
        mine = tokens - dist.get_rank(self.group) * len(rows)
        here = (mine >= 0) & (mine < len(rows))
        found = F.embedding(torch.where(here, mine, 0), rows)
        return scatter(found * here.unsqueeze(-1), self.group)
