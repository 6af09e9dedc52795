"""The optimizer of a run, from its config and its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from train.model.params import ParamSpec
from train.optim.adamw import Kernel, Rounded, fastest
from train.optim.optimizer import Optimizer, module_of, set_lr
from train.optim.param_groups import Rule, rule_of
from train.spec.config import ModelConfig, OptimConfig


def make_optimizer(
    named: Iterable[tuple[str, nn.Parameter]],
    specs: Mapping[str, ParamSpec],
    model: ModelConfig,
    optim: OptimConfig,
    *,
    iteration_dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    kernel: Kernel | None = None,
) -> Optimizer:
    """Return the optimizer of these weights (whole tensors or shards), at its peak rate.

    specs: what each weight is, by name. iteration_dtype: format of Muon's Newton-Schulz products. state_dtype: format
    of moments and momentum. kernel: what takes AdamW's step; None: the fastest, and torch's with stochastic rounding
    where moments are bf16.
    """
    members: dict[Rule, list[tuple[str, nn.Parameter]]] = {}
    for name, weight in named:
        members.setdefault(rule_of(specs[name], model, optim), []).append((name, weight))
    chosen = {"iteration_dtype": iteration_dtype, "state_dtype": state_dtype}
    groups = [_group(rule, weights, specs, optim, **chosen) for rule, weights in members.items()]
    made = Optimizer(groups, kernel or (Rounded() if state_dtype is torch.bfloat16 else fastest))
    assert optim.lr is not None, "the config is resolved"
    set_lr(made, optim.lr)
    return made


def _group(
    rule: Rule,
    weights: list[tuple[str, nn.Parameter]],
    specs: Mapping[str, ParamSpec],
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
    group |= module_of(rule.algorithm).settings(optim)
    if rule.algorithm == "muon":
        group |= {"split": rule.split, "iteration_dtype": iteration_dtype}
        group["shapes"] = [specs[name].shape for name, _ in weights]
    return group
