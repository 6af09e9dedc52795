"""Stochastic gradient descent with momentum and decoupled weight decay, on this rank's shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.core.dtensor import local
from train.optim.decayed_step import decayed_step
from train.optim.sharded import take_gradient
from train.spec.config import OptimConfig


def settings(optim: OptimConfig) -> dict[str, Any]:
    """Return what its groups hold of the config."""
    return {"momentum": optim.momentum, "nesterov": optim.nesterov}


def update(
    group: Mapping[str, Any],
    weights: Sequence[Tensor],
    state: Mapping[Tensor, dict[str, Any]],
    skip: Tensor | None,
    scale: Tensor | None,
) -> None:
    """Take one step: buffer = momentum · buffer + gradient; weight shrinks by lr · decay, then moves along it."""
    lr, keep = group["lr"], group["momentum"]
    for weight in weights:
        own = local(weight)
        gradient = take_gradient(weight).to(own.dtype)
        if scale is not None:
            gradient.mul_(scale.to(gradient.device))
        if keep and not state[weight]:
            state[weight]["momentum_buffer"] = torch.zeros_like(weight, dtype=group["state_dtype"])
        buffer = local(state[weight]["momentum_buffer"]) if keep else None
        step, buffered = _step(gradient, buffer, keep, group["nesterov"])
        stepped = decayed_step(own, step.to(own.dtype), lr, group["weight_decay"])
        own.copy_(_unless(skip, own, stepped))
        if buffer is not None and buffered is not None:
            buffer.copy_(_unless(skip, buffer, buffered))


def _step(gradient: Tensor, buffer: Tensor | None, keep: float, nesterov: bool) -> tuple[Tensor, Tensor | None]:
    """Return the direction of the step and the new momentum."""
    if buffer is None:
        return gradient, None
    moved = (buffer * keep).add_(gradient)
    return (gradient.add(moved, alpha=keep) if nesterov else moved), moved


def _unless(skip: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    return new if skip is None else torch.where(skip.to(old.device) > 0, old, new)
