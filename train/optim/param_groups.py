"""Which rule, learning rate and decay each weight gets: a pure function of its name and of the config."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec import mup
from train.spec.config import ModelConfig, OptimConfig
from train.spec.counts import head_dim, kv_heads

KINDS = ("matrix", "head", "embedding", "norm")


@dataclass(frozen=True)
class Rule:
    """How a weight is trained; weights of one rule form a group.

    decay: decoupled weight decay, multiplied by the group's learning rate at every step. split: rows of the matrices
    that alternate within the weight, None for one.
    """

    algorithm: str
    lr_scale: float
    decay: float
    split: tuple[int, ...] | None = None


def kind_of(name: str, tied: bool) -> str:
    """Return what a weight is, by its name alone: a wrapper may have flattened it.

    matrix: a factor of a product within a block. head: the output head, also where it is the embedding. embedding: an
    input embedding that is only looked up. norm: the gain of a norm.
    """
    if name.endswith("norm.weight"):
        return "norm"
    if name.startswith("embedding"):
        return "head" if tied else "embedding"
    return "head" if name.startswith("output") else "matrix"


def rule_of(name: str, model: ModelConfig, optim: OptimConfig) -> Rule:
    """Return the rule of a weight. `optim` is resolved."""
    kind = kind_of(name, model.tied_embeddings)
    algorithm = optim.name
    if algorithm == "muon" and kind != "matrix":
        algorithm = "adamw"
    scale = _lr_scale(optim, kind) * mup.lr_scale(model, kind, optim.muon_scale if algorithm == "muon" else algorithm)
    decay = _decay(optim, kind)
    if optim.independent_decay:  # the step multiplies it by lr * scale, which leaves the schedule's factor
        assert optim.lr is not None, "the config is resolved"
        decay /= optim.lr * scale
    split = None
    if algorithm == "muon" and name.endswith("attention.qkv"):
        group = model.width // head_dim(model) // kv_heads(model)
        split = (group * head_dim(model), head_dim(model), head_dim(model))
    return Rule(algorithm, scale, decay, split)


def _lr_scale(optim: OptimConfig, kind: str) -> float:
    scales = {
        "embedding": optim.embedding_lr_scale,
        "head": optim.head_lr_scale,
        "norm": optim.norm_lr_scale,
    }
    return scales.get(kind, 1.0)


def _decay(optim: OptimConfig, kind: str) -> float:
    """Return the weight decay of a kind.

    By default norms have none, nor has an input embedding that is only looked up: its rows would shrink in the steps in
    which their token does not occur.
    """
    head = optim.weight_decay if optim.head_decay is None else optim.head_decay
    decays = {"embedding": optim.embedding_decay, "head": head, "norm": optim.norm_decay}
    return decays.get(kind, optim.weight_decay)
