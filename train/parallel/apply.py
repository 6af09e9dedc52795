"""From empty modules to stages: every strategy of the config, in the one order in which they compose."""

from __future__ import annotations

from collections.abc import Callable

import torch

from train.model.transformer import Part, Transformer
from train.parallel.mesh import Mesh
from train.parallel.stage import Stage
from train.spec.config import RunConfig
from train.spec.mesh import strategy

Fill = Callable[[Transformer], None]
"""Gives a module whose weights have memory their initial values."""


def make_stages(config: RunConfig, mesh: Mesh, device: torch.device, fill: Fill) -> tuple[Stage, ...]:
    """Return this rank's stages, their weights on the device and filled: one, or several of a pipeline."""
    with torch.device("meta"):
        modules = [
            Transformer(config.model, config.data.vocab_size, config.data.sequence_length, part)
            for part in parts(config, mesh)
        ]
    return tuple(_stage(module, config, mesh, device, fill) for module in modules)


def parts(config: RunConfig, mesh: Mesh) -> tuple[Part, ...]:
    """Return which parts of the model this rank holds."""
    assert mesh.axes.pp == 1
    return (Part(0, config.model.layers),)


def _stage(module: Transformer, config: RunConfig, mesh: Mesh, device: torch.device, fill: Fill) -> Stage:
    """Return the stage of one module on the meta device.

    Weights are cut first (tensor), then blocks changed as they run (context, fp8, checkpointing, compile), then wrapped
    for data parallelism; FSDP2 cuts empty weights, so that no rank ever holds a whole model.
    """
    how = strategy(config.parallel, mesh.axes)
    if how == "none":
        return Stage(_filled(module, device, fill), module)
    from train.parallel.replicate import replicate

    return replicate(_filled(module, device, fill), mesh, device)


def _filled(module: Transformer, device: torch.device, fill: Fill) -> Transformer:
    module.materialise(device)
    fill(module)
    return module
