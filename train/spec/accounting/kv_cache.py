"""Keys and values that generation keeps of each sequence."""

from __future__ import annotations

from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads


def per_token(model: ModelConfig, bytes_per_number: int = 2) -> int:
    """Return the bytes of keys and values of one token in all layers."""
    return 2 * model.layers * kv_heads(model) * head_dim(model) * bytes_per_number


def of_sequences(
    model: ModelConfig, sequences: int, tokens: int, *, tp: int = 1, pp: int = 1, bytes_per_number: int = 2
) -> int:
    """Return what one rank keeps of so many sequences of so many tokens [bytes].

    Tensor parallelism cuts heads, a pipeline layers. Every layer keeps all tokens, also one with a sliding window, as
    train.model.attention.kv_cache does.
    """
    layers = -(-model.layers // pp)
    return 2 * layers * -(-kv_heads(model) // tp) * head_dim(model) * bytes_per_number * sequences * tokens
