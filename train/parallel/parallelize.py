"""From empty modules to parts that run: every strategy of the config, in the one order in which they compose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from train.memory.activation_checkpointing import NONE, modes, wrap
from train.model.transformer import Part, Transformer
from train.parallel.mesh import Mesh
from train.parallel.model_part import ModelPart
from train.precision.float8 import convert
from train.precision.policy import formats
from train.spec.config import RunConfig
from train.spec.mesh import strategy

Fill = Callable[[Transformer], None]
"""Gives a module whose weights have memory their initial values."""


def make_parts(config: RunConfig, mesh: Mesh, device: torch.device, fill: Fill) -> tuple[ModelPart, ...]:
    """Return this rank's parts, their weights on the device and filled: one, or the stages of a pipeline."""
    with torch.device("meta"):
        modules = [
            Transformer(config.model, config.data.vocab_size, config.data.sequence_length, part)
            for part in parts(config, mesh)
        ]
    return tuple(_part(module, config, mesh, device, fill) for module in modules)


def parts(config: RunConfig, mesh: Mesh) -> tuple[Part, ...]:
    """Return which parts of the model this rank holds."""
    if mesh.axes.pp == 1:
        return (Part(0, config.model.layers),)
    from train.parallel.pipeline import parts_of

    return parts_of(config, mesh.rank("pp"))


def _part(module: Transformer, config: RunConfig, mesh: Mesh, device: torch.device, fill: Fill) -> ModelPart:
    """Return the part that runs one module on the meta device.

    In this order: tensor and expert parallelism shard weights; context parallelism, fp8, checkpointing and compile
    change how blocks run; data parallelism wraps. FSDP2 shards weights on the meta device, so no rank ever holds a
    whole model.
    """
    module.penalise(config.optim)
    if mesh.axes.tp > 1:
        from train.parallel.tensor import shard

        shard(module, mesh, config.parallel.async_tp)
    if mesh.axes.cp > 1:
        from train.parallel.context import share_sequences

        share_sequences(module, mesh)
    if mesh.axes.ep > 1:
        from train.parallel.experts import share_experts

        share_experts(module, mesh)
    _change_blocks(module, config)
    part = _data_parallel(module, config, mesh, device, fill)
    if mesh.axes.tp == 1:
        return part
    from train.parallel.tensor import finish

    return replace(part, finish=partial(finish, module, mesh))


def _change_blocks(module: Transformer, config: RunConfig) -> None:
    """Change how blocks run, not what they hold: products in fp8, what is kept for the backward pass, compiled code."""
    blocks = {int(name): block for name, block in module.blocks.items()}
    if config.precision.name == "fp8":
        convert(blocks, config.model.layers, config.precision)
    every = [NONE] * config.model.layers  # a budget is filled while the run steps, see train.build
    if config.memory.checkpointing != "budget":
        every = modes(config.memory, config.model.layers)
    wrap(list(blocks.values()), [every[number] for number in blocks], config.compile)


def _data_parallel(module: Transformer, config: RunConfig, mesh: Mesh, device: torch.device, fill: Fill) -> ModelPart:
    """Return the part with its weights on the device, held in the way that the config's strategy says."""
    how = strategy(config.parallel, mesh.axes)
    if how == "fsdp":
        from train.parallel.fsdp import shard

        part = shard(module, config, mesh)
        _filled(module, device, fill)
        if config.precision.fp8_gather:
            from train.parallel.float8_all_gather import gather_in_fp8

            gather_in_fp8(module, mesh.group("fsdp"), formats(config.precision).compute)
        return part
    _filled(module, device, fill)
    if how == "fsdp1":
        from train.parallel.fsdp1 import shard_flat

        return shard_flat(module, config, mesh, device)
    if how == "ddp":
        from train.parallel.ddp import replicate as copies

        return copies(module, mesh, device, config.parallel.ddp_bucket_mib)
    return ModelPart(module, module)


def _filled(module: Transformer, device: torch.device, fill: Fill) -> None:
    module.materialise(device)
    fill(module)
