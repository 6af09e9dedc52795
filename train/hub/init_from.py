"""Weights that a run starts from instead of random ones: read by name, each rank its own part."""

from __future__ import annotations

from pathlib import Path

import torch

from train.hub.safetensors import Shards
from train.model.regions import parts_of
from train.model.transformer import Transformer
from train.spec.config import ModelConfig
from train.spec.from_mapping import read
from train.spec.yamlfile import read_mapping

SHAPE = (
    *("width", "layers", "head_dim", "kv_heads", "mlp_width", "qk_norm", "tied_embeddings"),
    *("experts", "experts_per_token", "router_score"),
)
"""Keys of a model without which its weights are another's, also where every tensor that is asked for is there."""


def load_initial_weights(module: Transformer, place: Path) -> None:
    """Fill a module's weights from a folder that `train.hub import` made, whatever the layout over ranks.

    Buffers, which are the biases of experts, become 0, as they are where weights are random.

    Raises ValueError that names the key which says another model, or the weight which is missing or has another shape.
    """
    shards = Shards(place)
    _check_model(module.config, place)
    with torch.no_grad():
        for buffer in module.buffers():
            buffer.zero_()
        for name, weight in module.named_parameters():
            shape = module.specs[name].shape
            if shards.shape(name) != shape:
                raise ValueError(
                    f"model.init_from={place}: {name} has shape {shards.shape(name)}, the config wants "
                    f"{shape}; take the model and data sections of {place / 'config.yaml'}"
                )
            for region, part in parts_of(weight, shape):
                if part.numel():
                    part.copy_(shards.read(name, region))


def _check_model(model: ModelConfig, place: Path) -> None:
    """Raise ValueError where the weights are those of a model of another make: with fewer layers it would still fit."""
    if not (place / "config.yaml").exists():
        return
    theirs = read(ModelConfig, read_mapping(place / "config.yaml").get("model") or {}, "model")
    for name in SHAPE:
        ours, stored = getattr(model, name), getattr(theirs, name)
        if None not in (ours, stored) and ours != stored:
            raise ValueError(
                f"model.{name}={ours} but the weights of model.init_from={place} are those of {name}={stored}: take "
                f"the model and data sections of {place / 'config.yaml'}"
            )
