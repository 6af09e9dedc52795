"""Which rule, learning rate and decay each weight gets: a pure function of what it is and of the config."""

from __future__ import annotations

from dataclasses import dataclass

from train.model.params import Kind, ParamSpec
from train.spec import mup
from train.spec.config import ModelConfig, OptimConfig
from train.spec.optimizers import OPTIMIZERS, algorithm_of


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


def rule_of(spec: ParamSpec, model: ModelConfig, optim: OptimConfig) -> Rule:
    """Return the rule of a weight. `optim` is resolved."""
    kind = spec.kind
    algorithm = algorithm_of(optim.name, kind)
    scale = _lr_scale(optim, kind) * mup.lr_scale(model, kind, OPTIMIZERS[algorithm].mup or optim.muon_scale)
    decay = _decay(optim, kind)
    if optim.independent_decay:  # the step multiplies it by lr * scale, which leaves the schedule's factor
        assert optim.lr is not None, "the config is resolved"
        decay /= optim.lr * scale
    return Rule(algorithm, scale, decay, spec.muon_split if algorithm == "muon" else None)


def _lr_scale(optim: OptimConfig, kind: Kind) -> float:
    scales = {"embedding": optim.embedding_lr_scale, "head": optim.head_lr_scale, "norm": optim.norm_lr_scale}
    return scales.get(kind, 1.0)


def _decay(optim: OptimConfig, kind: Kind) -> float:
    """Return the weight decay of a kind.

    By default norms have none, nor has an input embedding that is only looked up: its rows would shrink in the steps in
    which their token does not occur.
    """
    head = optim.weight_decay if optim.head_decay is None else optim.head_decay
    decays = {"embedding": optim.embedding_decay, "head": head, "norm": optim.norm_decay}
    return decays.get(kind, optim.weight_decay)
