"""Exact parameter and FLOP counts of the decoder. A number carries its meaning: each kind of N has its own name."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config import ModelConfig

FLOP_RULE = "6*matmul+attention"
"""Name of the rule by which FLOPs are counted, recorded beside every count."""


@dataclass(frozen=True)
class Params:
    """Parameter counts of one model, by kind.

    total: every parameter. embedding: the input embedding. non_embedding: the blocks and norms, without the input
    embedding and the output head. matmul: every weight that takes part in a matrix product, which is the blocks'
    matrices and the output head (also where it is tied to the embedding).
    """

    total: int
    embedding: int
    non_embedding: int
    matmul: int


def mlp_width(model: ModelConfig) -> int:
    """Return the SwiGLU hidden width: 8/3 of the width rounded up to a multiple of 16, unless it is given."""
    return model.mlp_width if model.mlp_width is not None else -(-8 * model.width // 48) * 16


def head_dim(model: ModelConfig) -> int:
    """Return the width of one attention head: unless given, the largest even divisor that leaves about eight heads.

    That is up to an eighth of the width, but 12 to 64 channels. Measured at widths 24 to 60: heads of 12 reach 0.02 to
    0.05 nats less than half as many of twice the width, at equal compute, and cost a quarter more time on a CPU.
    """
    if model.head_dim is not None:
        return model.head_dim
    most = min(64, max(12, model.width // 8))
    return max((d for d in range(2, most + 1, 2) if model.width % d == 0), default=model.width)


def kv_heads(model: ModelConfig) -> int:
    """Return the number of key/value heads: one per query head unless it is given."""
    return model.kv_heads if model.kv_heads is not None else model.width // head_dim(model)


def window_of(model: ModelConfig, layer: int) -> int | None:
    """Return the sliding window of block number `layer` (from 0) [tokens]; None where it sees all keys."""
    if model.global_every and (layer + 1) % model.global_every == 0:
        return None
    return model.window


def params(model: ModelConfig, vocab_size: int) -> Params:
    """Return the parameter counts of a model with this vocabulary [tokens]."""
    attention = 2 * model.width * model.width + 2 * model.width * kv_heads(model) * head_dim(model)
    mlp = 3 * model.width * mlp_width(model)
    matrices = model.layers * (attention + mlp)
    norms = model.layers * (2 * model.width + (2 * head_dim(model) if model.qk_norm else 0)) + model.width
    embedding = vocab_size * model.width
    head = 0 if model.tied_embeddings else embedding
    return Params(
        total=embedding + head + matrices + norms,
        embedding=embedding,
        non_embedding=matrices + norms,
        matmul=matrices + embedding,
    )


def flops_per_token(model: ModelConfig, vocab_size: int, sequence_length: int) -> int:
    """Return training FLOPs per token, forward and backward: 6 per matmul parameter plus attention.

    Attention is 12 · width · keys of each block: two products of forward and four of backward, over the full
    (unmasked) square, as in PaLM (Chowdhery et al. 2022, appendix B) and as torch's FlopCounterMode counts them. In a
    block with a sliding window keys are the window's; document masks are not counted.
    """
    keys = sum(min(window_of(model, layer) or sequence_length, sequence_length) for layer in range(model.layers))
    return 6 * params(model, vocab_size).matmul + 12 * model.width * keys
