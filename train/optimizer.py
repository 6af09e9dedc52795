"""AdamW with decoupled weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from train.spec.config import OptimConfig


def decayed(name: str, weight: torch.Tensor, tied: bool) -> bool:
    """Say whether a weight decays: it does if it is a factor of a matrix product.

    Norms do not, nor does an input embedding that is only looked up: its rows would shrink in the steps in which their
    token does not occur. A tied embedding is the head's matrix and decays.
    """
    return weight.dim() >= 2 and (name != "embedding.weight" or tied)


def make_optimizer(weights: Iterable[tuple[str, nn.Parameter]], config: OptimConfig, tied: bool) -> torch.optim.AdamW:
    """Return torch's fused AdamW over named weights, in two groups: decayed and not.

    The learning rate is set step by step (`set_lr`), so that it is a function of tokens alone and no state of its own.
    """
    named = list(weights)
    groups = [
        {
            "params": [w for n, w in named if decayed(n, w, tied)],
            "weight_decay": config.weight_decay,
        },
        {"params": [w for n, w in named if not decayed(n, w, tied)], "weight_decay": 0.0},
    ]
    assert config.lr is not None, "the config is resolved"
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr
