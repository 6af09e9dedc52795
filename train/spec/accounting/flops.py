"""FLOPs of a token by component, forward, backward and made again by checkpointing, as torch's FlopCounterMode counts.

A product of a token with a weight of n numbers is 2 n; scores and their product with the values are 4 · width · keys
over the full (unmasked) square, or the window (train.spec.counts). A backward pass has two products for each one of the
forward pass. Norms, rotations and activations are no products, and count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.accounting.parameters import parameters
from train.spec.config import MemoryConfig, ModelConfig
from train.spec.counts import mlp_width, window_of

BACKWARD = 2
"""Products of a backward pass for each one of the forward pass."""


@dataclass(frozen=True)
class Flops:
    """FLOPs of a token in a forward pass. projections: the products of attention's weights; scores: the rest of it."""

    projections: int
    scores: int
    mlp: int
    head: int

    @property
    def forward(self) -> int:
        """A forward pass."""
        return self.projections + self.scores + self.mlp + self.head

    @property
    def backward(self) -> int:
        """A backward pass, without what is made again."""
        return BACKWARD * self.forward

    @property
    def training(self) -> int:
        """Both passes: 6 for each weight of a product plus attention, as train.spec.counts.flops_per_token."""
        return self.forward + self.backward

    @property
    def without_attention(self) -> int:
        """Both passes without scores: the 6 N of Kaplan et al. 2020, with the head."""
        return self.training - (1 + BACKWARD) * self.scores

    @property
    def without_head(self) -> int:
        """Both passes without the output head."""
        return self.training - (1 + BACKWARD) * self.head


def per_token(model: ModelConfig, vocab_size: int, sequence_length: int) -> Flops:
    """Return the FLOPs of a token in sequences of this length [tokens]."""
    counts = parameters(model, vocab_size)
    keys = sum(_keys(model, layer, sequence_length) for layer in range(model.layers))
    return Flops(
        2 * counts.attention, 4 * model.width * keys, 2 * (counts.mlp - counts.idle), 2 * vocab_size * model.width
    )


def recomputed(model: ModelConfig, sequence_length: int, memory: MemoryConfig) -> int:
    """Return the FLOPs of a token that checkpointing does a second time in the backward pass.

    full, every: a block's forward pass up to the last tensor that its backward pass needs, which is the input of its
    last product: torch stops there. selective: elementwise work only, no products. budget: at most what full does.
    """
    if memory.checkpointing in ("none", "selective"):
        return 0
    again = range(0, model.layers, memory.every if memory.checkpointing == "every" else 1)
    whole = per_token(model, 0, sequence_length)
    one = (whole.projections + whole.mlp) // model.layers - _last_products(model)
    return len(again) * one + 4 * model.width * sum(_keys(model, layer, sequence_length) for layer in again)


def _last_products(model: ModelConfig) -> int:
    """Return the FLOPs of a block's last product if no backward pass needs its result, as it does that of experts."""
    dense = model.shared_experts if model.experts else 1
    return 2 * dense * mlp_width(model) * model.width


def _keys(model: ModelConfig, layer: int, sequence_length: int) -> int:
    return min(window_of(model, layer) or sequence_length, sequence_length)
