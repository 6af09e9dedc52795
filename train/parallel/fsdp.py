"""Sharded data parallelism: torch's FSDP2, with copies of the shards where dp_replicate asks for them (HSDP).

`parallel.zero` is a stage of ZeRO (Rajbhandari et al. 2020). 1: moments are sharded; gradients stay whole until the
last micro-batch. 2: gradients are sharded, too, by a reduce-scatter after each micro-batch. With both, weights stay
gathered from the first micro-batch to the update. 3: weights are sharded, too; each block gathers them for its forward
and again for its backward pass. A lower stage takes more memory and sends fewer messages.

`parallel.fsdp_prefetch` is how many blocks are gathered ahead. 1 is torch's own way: the next block's message is handed
over once this one's weights are there, and in the backward pass before its products. With more, each block hands over
those of as many blocks before it computes.

Copies (dp_replicate) all-reduce their shards of the gradients once a step. Where gradients are reduced in bf16 they do
so after each micro-batch, so that micro-batches add up in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from train.model.transformer import Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart
from train.precision.policy import formats
from train.spec.config import RunConfig
from train.spec.shard_shapes import stored_shape


def shard(module: Transformer, config: RunConfig, mesh: Mesh) -> ModelPart:
    """Shard a module's weights over the ranks; on the meta device, so that no rank ever holds them whole."""
    view = _view(mesh)
    placements = _store_evenly(module, mesh.axes.fsdp)
    how: dict[str, Any] = {
        "mesh": view,
        "mp_policy": _precision(config),
        "offload_policy": CPUOffloadPolicy() if _offloads(config, view) else OffloadPolicy(),
        "shard_placement_fn": placements.get,
    }
    freed = config.parallel.zero == 3
    if mesh.axes.ep > 1:
        from train.parallel.experts import expert_layers

        for layer in expert_layers(module):
            fully_shard(layer.experts, reshard_after_forward=freed, **{**how, "mesh": _view(mesh, experts=True)})
    for block in module.blocks.values():
        fully_shard(block, reshard_after_forward=freed, **how)
    # Embedding and head on their own: each is as large as many blocks, and is not needed at the other end of the pass.
    # A tied weight is needed at both, and stays with the root.
    if module.output is not None and module.output.weight is not None:
        fully_shard(module.output, reshard_after_forward=False, **how)
        if module.embedding is not None:
            fully_shard(module.embedding, reshard_after_forward=freed, **how)
    elif module.embedding is not None and module.output is None:
        fully_shard(module.embedding, reshard_after_forward=freed, **how)
    fully_shard(module, reshard_after_forward=False, **how)
    assert isinstance(module, FSDPModule)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            # Losses are shares of the global mean already, so gradients are summed, not averaged.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    if config.parallel.fsdp_prefetch > 1 or mesh.axes.ep > 1:
        _gather_ahead(list(module.blocks.values()), config.parallel.fsdp_prefetch)
    # FSDP2 keeps what copies have not added up yet in the reduce format: in bf16 many micro-batches would be lost.
    late = mesh.axes.dp_replicate > 1 and formats(config.precision).reduce is torch.float32
    return ModelPart(module, module, _last_micro(module, config.parallel.zero, late))


def _last_micro(module: FSDPModule, zero: int, copies_late: bool) -> Any:
    def tell(last: bool) -> None:
        if zero == 1:
            module.set_requires_gradient_sync(last)
        elif copies_late:  # what a copy's ranks have summed adds up there until the last
            module.set_requires_all_reduce(last)
        if zero < 3:
            module.set_reshard_after_backward(last)

    return tell


def _gather_ahead(blocks: Sequence[nn.Module], depth: int) -> None:
    """Let every block gather ahead: weights of its experts, if ranks share them, as the host waits for rows before
    these are called; with a depth above 1 also those of the `depth` blocks that come next, forward and backward."""
    sharded: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
    inner = [[one for one in block.modules() if isinstance(one, FSDPModule) and one is not block] for block in blocks]
    for place, block in enumerate(sharded):
        further = sharded[place + 1 : place + 1 + depth] if depth > 1 else []
        block.set_modules_to_forward_prefetch([*inner[place], *further])
        if depth > 1:
            block.set_modules_to_backward_prefetch([*inner[place], *sharded[max(0, place - depth) : place][::-1]])


def _offloads(config: RunConfig, view: DeviceMesh) -> bool:
    """Whether shards wait in the CPU's memory; a run on a CPU has them there, and torch refuses to move them."""
    return config.memory.offload == "parameters" and view.device_type != "cpu"


def _view(mesh: Mesh, experts: bool = False) -> DeviceMesh:
    whole, axis = (mesh.experts, "expert_fsdp") if experts else (mesh.weights, "fsdp")
    assert whole is not None
    return whole["dp_replicate", axis] if mesh.axes.dp_replicate > 1 else whole[axis]


def _precision(config: RunConfig) -> MixedPrecisionPolicy:
    chosen = formats(config.precision)
    if chosen.compute is torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=chosen.compute, reduce_dtype=chosen.reduce, cast_forward_inputs=False)


def _store_evenly(module: Transformer, ranks: int) -> dict[nn.Parameter, Shard]:
    """Store every weight in rows that the ranks can share evenly (train.spec.shard_shapes); return its placement.

    FSDP2 shards only the first axis unevenly. A weight that tensor parallelism has sharded keeps its shape, as its part
    is not one run of the whole weight's numbers; train.spec.mesh refuses sizes that cannot be shared equally.
    """
    placements = {}
    for name, weight in list(module.named_parameters()):
        spec = module.specs[name]
        shape = stored_shape(spec.shape, ranks)
        if shape == spec.shape or isinstance(weight, DTensor):
            placements[weight] = Shard(spec.fsdp_dim)
        else:
            owner, _, leaf = name.rpartition(".")
            stored = nn.Parameter(weight.detach().view(shape))
            setattr(module.get_submodule(owner), leaf, stored)
            placements[stored] = Shard(0)
    return placements
