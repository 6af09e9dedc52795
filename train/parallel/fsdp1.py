"""Sharded data parallelism by torch's first FSDP, kept to compare: flat parameters, one for each block.

FSDP1 averages gradients over ranks and losses here are shares of a sum, so the loss is multiplied by the ranks' number.

Copies (dp_replicate above 1) all-reduce their gradients after every micro-batch, FSDP2's once a step. FSDP1 cannot put
off that message alone: `no_sync` also keeps whole gradients until the last micro-batch, the memory that sharding is
there to save, and torch takes no communication hook for hybrid strategies. Comparisons over several micro-batches
include this difference.
"""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from train.model.transformer import Block, Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart
from train.precision.policy import formats
from train.spec.config import RunConfig

_STRATEGIES = {
    (2, False): ShardingStrategy.SHARD_GRAD_OP,
    (3, False): ShardingStrategy.FULL_SHARD,
    (2, True): ShardingStrategy._HYBRID_SHARD_ZERO2,
    (3, True): ShardingStrategy.HYBRID_SHARD,
}


def shard_flat(module: Transformer, config: RunConfig, mesh: Mesh, device: torch.device) -> ModelPart:
    """Return the part that is a model whose weights, on the device already, are cut over ranks."""
    assert mesh.weights is not None
    copies = mesh.axes.dp_replicate > 1
    chosen = formats(config.precision)
    short = chosen.compute is not torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = FullyShardedDataParallel(
            module,
            device_mesh=mesh.weights["dp_replicate", "fsdp"] if copies else mesh.weights["fsdp"],
            sharding_strategy=_STRATEGIES[config.parallel.zero, copies],
            auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            mixed_precision=MixedPrecision(param_dtype=chosen.compute, reduce_dtype=chosen.reduce) if short else None,
            device_id=device,
            use_orig_params=True,
        )
    for weight in module.parameters():
        weight.flat_over = mesh.axes.fsdp  # type: ignore[attr-defined]  # for train.parallel.grad_norm: no DTensor says it
    return ModelPart(module, wrapped, loss_factor=float(mesh.axes.data * mesh.axes.cp))
