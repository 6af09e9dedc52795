"""A model's parameters by component: embedding, attention, feed-forward layers, norms, head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from train.spec.config import ModelConfig
from train.spec.counts import Weight, block_weights, end_weights


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights by component. head: the output head's own weight, 0 where it is tied to the embedding.

    matmul: weights that take part in a matrix product of a token, the head also where it is tied. active: weights that
    a token goes through, all of them in a dense model. idle: weights of experts that it does not go through, in `mlp`.
    """

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int
    matmul: int
    active: int
    idle: int = 0

    @property
    def total(self) -> int:
        """Every weight."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head

    @property
    def non_embedding(self) -> int:
        """The blocks and norms, without the input embedding and the output head."""
        return self.attention + self.mlp + self.norms


def component(name: str) -> str:
    """Return which component a weight belongs to by its name in the model or in its block."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    if kind.endswith("norm"):
        return "norms"
    return {"embedding": "embedding", "output": "head", "qkv": "attention", "out": "attention"}.get(kind, "mlp")


def parameters(model: ModelConfig, vocab_size: int) -> Parameters:
    """Return the parameters of a decoder with this vocabulary [tokens], by component."""
    found = dict.fromkeys(("embedding", "attention", "mlp", "norms", "head"), 0)
    _add(found, block_weights(model), model.layers)
    _add(found, end_weights(model, vocab_size), 1)
    idle = model.layers * sum(weight.numbers - weight.active(model) for weight in block_weights(model).values())
    products = found["attention"] + found["mlp"] - idle + vocab_size * model.width  # the head's is there, tied or not
    return Parameters(**found, matmul=products, active=sum(found.values()) - idle, idle=idle)


def _add(found: dict[str, int], weights: Mapping[str, Weight], times: int) -> None:
    for name, weight in weights.items():
        found[component(name)] += times * weight.numbers
