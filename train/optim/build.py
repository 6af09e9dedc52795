"""The optimizer of a run, from its config and the names of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from train.optim.adamw import Kernel, Rounded, fastest
from train.optim.optimizer import Optimizer, set_lr
from train.optim.param_groups import Rule, rule_of
from train.spec.config import ModelConfig, OptimConfig
from train.spec.cut import Shape


def make_optimizer(
    named: Iterable[tuple[str, nn.Parameter]],
    model: ModelConfig,
    optim: OptimConfig,
    *,
    iteration_dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    kernel: Kernel | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> Optimizer:
    """Return the optimizer of these weights (names as in the whole model; whole tensors or shards), at its peak rate.

    iteration_dtype: format of Muon's Newton-Schulz products. state_dtype: format of moments and momentum. kernel: what
    takes AdamW's step; None: the fastest, and torch's with stochastic rounding where moments are bf16. shapes: of the
    whole weights by name, where sharding stores their numbers in other rows.
    """
    members: dict[Rule, list[tuple[str, nn.Parameter]]] = {}
    for name, weight in named:
        members.setdefault(rule_of(name, model, optim), []).append((name, weight))
    chosen = {"iteration_dtype": iteration_dtype, "state_dtype": state_dtype}
    groups = [_group(rule, weights, shapes or {}, optim, **chosen) for rule, weights in members.items()]
    made = Optimizer(groups, kernel or (Rounded() if state_dtype is torch.bfloat16 else fastest))
    assert optim.lr is not None, "the config is resolved"
    set_lr(made, optim.lr)
    return made


def _group(
    rule: Rule,
    weights: list[tuple[str, nn.Parameter]],
    shapes: Mapping[str, Shape],
    optim: OptimConfig,
    *,
    iteration_dtype: torch.dtype,
    state_dtype: torch.dtype,
) -> dict[str, Any]:
    group: dict[str, Any] = {
        "params": [weight for _, weight in weights],
        "names": [name for name, _ in weights],
        "algorithm": rule.algorithm,
        "lr_scale": rule.lr_scale,
        "weight_decay": rule.decay,
        "state_dtype": state_dtype,
    }
    if rule.algorithm == "adamw":
        # "fused" is torch's word for a step count that lives on the weight's device; checkpoints go by it.
        return group | {"betas": (optim.beta1, optim.beta2), "eps": optim.eps, "fused": True}
    group |= {"momentum": optim.momentum, "nesterov": optim.nesterov}
    if rule.algorithm == "muon":
        group |= {"split": rule.split, "iterations": optim.muon_iterations, "scale": optim.muon_scale}
        whole = [shapes.get(name, tuple(weight.shape)) for name, weight in weights]
        group |= {"iteration_dtype": iteration_dtype, "shapes": whole}
    return group
