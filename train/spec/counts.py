"""The decoder's weights, and its exact parameter and FLOP counts: each kind of N has its own name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from train.spec.config import ModelConfig

Shape = tuple[int, ...]

FLOP_RULE = "6*matmul+attention"
"""Name of the rule by which FLOPs are counted, recorded beside every count."""


@dataclass(frozen=True)
class Params:
    """Parameter counts of one model, by kind.

    total: every parameter. embedding: the input embedding. non_embedding: the blocks and norms, without the input
    embedding and the output head. matmul: every weight that takes part in a matrix product of a token, which is the
    blocks' matrices and the output head (also where it is tied to the embedding). active: what a token goes through,
    all of a dense model. Of experts, matmul, non_embedding and active count those that a token goes through.
    """

    total: int
    embedding: int
    non_embedding: int
    matmul: int
    active: int


def mlp_width(model: ModelConfig) -> int:
    """Return the SwiGLU hidden width: 8/3 of the width rounded up to a multiple of 16, unless it is given."""
    return model.mlp_width if model.mlp_width is not None else -(-8 * model.width // 48) * 16


def experts_per_token(model: ModelConfig) -> int:
    """Return how many experts a token goes through, those that all go through left out; 0 in a dense model."""
    if not model.experts:
        return 0
    return min(2, model.experts) if model.experts_per_token is None else model.experts_per_token


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


@dataclass(frozen=True)
class Weight:
    """A weight's shape and the axes that it is cut along, as its train.model.params.ParamSpec says, without torch.

    tp_dim: by tensor parallelism, None: each rank holds it whole. fsdp_dim: by FSDP within tensor parallelism. experts:
    how many lie along its first axis, of which a token goes through a few; 0: it goes through all of the weight.
    """

    shape: Shape
    tp_dim: int | None = None
    fsdp_dim: int = 0
    experts: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def active(self, model: ModelConfig) -> int:
        """Return how many of its numbers a token goes through."""
        return self.numbers * experts_per_token(model) // self.experts if self.experts else self.numbers

    def on_tensor_rank(self, tp: int) -> Shape:
        """Return the shape of what one of `tp` tensor-parallel ranks has."""
        axis = self.tp_dim
        if axis is None:
            return self.shape
        return (*self.shape[:axis], -(-self.shape[axis] // tp), *self.shape[axis + 1 :])


def block_weights(model: ModelConfig) -> dict[str, Weight]:
    """Return one block's weights by their names in the block."""
    width, size = model.width, head_dim(model)
    norm, head_norm = Weight((width,)), Weight((size,))
    head_norms = {"attention.query_norm.weight": head_norm, "attention.key_norm.weight": head_norm}
    return {
        "attention_norm.weight": norm,
        "attention.qkv": Weight((width + 2 * kv_heads(model) * size, width), tp_dim=0),
        "attention.out": Weight((width, width), tp_dim=1),
        **(head_norms if model.qk_norm else {}),
        "mlp_norm.weight": norm,
        **_feed_forward(model),
    }


def _feed_forward(model: ModelConfig) -> dict[str, Weight]:
    """Return the weights of a feed-forward layer: dense, or a router, its experts and those that all go through."""
    width, hidden, experts = model.width, mlp_width(model), model.experts
    if not experts:
        return _gated("mlp", width, hidden)
    shared = _gated("mlp.shared", width, model.shared_experts * hidden) if model.shared_experts else {}
    return {
        "mlp.router": Weight((experts, width)),
        "mlp.experts.gate_up": Weight((experts, 2, hidden, width), fsdp_dim=2, experts=experts),
        "mlp.experts.down": Weight((experts, width, hidden), fsdp_dim=1, experts=experts),
        **shared,
    }


def _gated(layer: str, width: int, hidden: int) -> dict[str, Weight]:
    return {
        f"{layer}.gate_up": Weight((2, hidden, width), tp_dim=1, fsdp_dim=1),
        f"{layer}.down": Weight((width, hidden), tp_dim=1),
    }


def end_weights(model: ModelConfig, vocab_size: int, first: bool = True, last: bool = True) -> dict[str, Weight]:
    """Return the weights beside the blocks, in the part of a model that has its first or last layer."""
    matrix = Weight((vocab_size, model.width), tp_dim=0)
    found: dict[str, Weight] = {}
    if first or (last and model.tied_embeddings):
        found["embedding.weight"] = matrix
    if last:
        found["norm.weight"] = Weight((model.width,))
        if not model.tied_embeddings:
            found["output.weight"] = matrix
    return found


@lru_cache(maxsize=1024)
def params(model: ModelConfig, vocab_size: int) -> Params:
    """Return the parameter counts of a model with this vocabulary [tokens]."""
    block, ends = block_weights(model).values(), end_weights(model, vocab_size).values()
    matrices = model.layers * sum(weight.active(model) for weight in block if len(weight.shape) > 1)
    idle = model.layers * sum(weight.numbers - weight.active(model) for weight in block)
    total = model.layers * sum(weight.numbers for weight in block) + sum(weight.numbers for weight in ends)
    embedding = vocab_size * model.width
    return Params(
        total=total,
        embedding=embedding,
        non_embedding=total - idle - embedding * (1 if model.tied_embeddings else 2),
        matmul=matrices + embedding,
        active=total - idle,
    )


def flops_per_token(model: ModelConfig, vocab_size: int, sequence_length: int) -> int:
    """Return training FLOPs per token, forward and backward: 6 per matmul parameter (see `Params`) plus attention.

    Attention is 12 · width · keys of each block: two products of forward and four of backward, over the full
    (unmasked) square, as in PaLM (Chowdhery et al. 2022, appendix B) and as torch's FlopCounterMode counts them. In a
    block with a sliding window keys are the window's; document masks are not counted.
    """
    keys = sum(min(window_of(model, layer) or sequence_length, sequence_length) for layer in range(model.layers))
    return 6 * params(model, vocab_size).matmul + 12 * model.width * keys
