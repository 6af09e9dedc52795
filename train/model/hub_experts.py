"""Weights of experts as Hugging Face's Mixtral and Qwen3-MoE have them, by the names of their published weights.

Ours are stacked over experts, gate before up; theirs are one matrix for each expert and product. Models with QK-norm
are Qwen3-MoE, those without are Mixtral, whose w1, w3 and w2 are gate, up and down.
"""

from __future__ import annotations

import torch

from train.model.params import HubTensors, same_tensor
from train.spec.config import ModelConfig


def router(config: ModelConfig) -> HubTensors:
    """Return the router of a layer, (experts, width) there and here."""
    return same_tensor(f"{_layer(config)}.gate.weight")


def gate_up(config: ModelConfig) -> HubTensors:
    """Return gate and up of each expert, (hidden, width) each, for `Experts.gate_up`."""
    return HubTensors(
        _names(config, *(("gate_proj", "up_proj") if config.qk_norm else ("w1", "w3"))),
        lambda ours: ours.flatten(0, 1).unbind(),
        lambda theirs: torch.stack(list(theirs)).view(config.experts, 2, *theirs[0].shape),
    )


def down(config: ModelConfig) -> HubTensors:
    """Return the last product of each expert, (width, hidden), for `Experts.down`."""
    names = _names(config, "down_proj" if config.qk_norm else "w2")
    return HubTensors(names, torch.unbind, lambda theirs: torch.stack(list(theirs)))


def _names(config: ModelConfig, *products: str) -> tuple[str, ...]:
    """Return the names of some products of all experts, those of an expert together."""
    layer = _layer(config)
    return tuple(f"{layer}.experts.{n}.{product}.weight" for n in range(config.experts) for product in products)


def _layer(config: ModelConfig) -> str:
    return "mlp" if config.qk_norm else "block_sparse_moe"
