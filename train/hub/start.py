"""Weights that a run starts from instead of random ones: read by name, each rank its own part."""

from __future__ import annotations

from pathlib import Path

import torch

from kernels.sharding import local
from train.hub.shards import Shards
from train.model.initialise import region_of
from train.model.transformer import Transformer


def start_from(module: Transformer, place: Path) -> None:
    """Fill a module's weights from a folder that `train.hub import` made, whatever the layout over ranks.

    Raises ValueError that names the weight which is missing or has another shape.
    """
    shards = Shards(place)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if shards.shape(name) != tuple(weight.shape):
                raise ValueError(
                    f"model.init_from={place}: {name} has shape {shards.shape(name)}, the config wants "
                    f"{tuple(weight.shape)}; take the model and data sections of {place / 'config.yaml'}"
                )
            part = local(weight)
            if part.numel():
                part.copy_(shards.read(name, region_of(weight)))
