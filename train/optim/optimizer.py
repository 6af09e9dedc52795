"""One optimizer over all weights of a rank, whatever rules its groups follow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from kernels.core.dtensor import local
from train.optim import adamw
from train.optim.adamw import Kernel
from train.spec.config import OptimConfig
from train.spec.optimizers import OPTIMIZERS


class Rule(Protocol):
    """What an optimizer's module offers."""

    def settings(self, optim: OptimConfig) -> dict[str, Any]:
        """Return what its groups hold of the config."""

    def update(
        self,
        group: Mapping[str, Any],
        weights: Sequence[Tensor],
        state: Mapping[Tensor, dict[str, Any]],
        skip: Tensor | None,
        scale: Tensor | None,
        **more: Any,
    ) -> None:
        """Take one step of a group: `skip` and `scale` as in :meth:`Optimizer.step`, `state` by weight."""


def module_of(algorithm: str) -> Rule:
    """Return the module of an optimizer by its name in OPTIMIZERS."""
    return cast(Rule, import_module(f"train.optim.{OPTIMIZERS[algorithm].module}"))


class Optimizer(torch.optim.Optimizer):
    """Groups of weights, each with its rule (a name in OPTIMIZERS), learning rate and decay.

    A torch optimizer, so that distributed checkpoints know how to save and reshard its state: `step`, `exp_avg` and
    `exp_avg_sq` of AdamW, `momentum_buffer` of the others, laid out as their weight is. The settings in the groups
    come from the config and are not taken from a loaded state.
    """

    def __init__(self, groups: list[dict[str, Any]], kernel: Kernel = adamw.fastest) -> None:
        super().__init__(groups, {"lr": 0.0})
        self._kernel = kernel

    # Torch marks these two as what its compiler leaves alone, by importing the compiler: 0.7 s of every start.
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take a group of weights in."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of all gradients."""
        assert set_to_none, "gradients are not kept as zeros"
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Callable[[], float] | None = None,
        *,
        skip: Tensor | None = None,
        grad_scale: Tensor | None = None,
    ) -> None:
        """Take one step with the gradients that are there and let go of each as soon as it is used.

        skip: a float scalar on the device; 1 leaves weights and state bitwise as they are, 0 takes the step. Nothing
        waits for its value. grad_scale: a scalar on the device that multiplies the gradients on the way.
        """
        assert closure is None, "no closure is called"
        if skip is not None and skip.device.type == "cpu":  # where reading it waits for nothing
            if skip:
                self.zero_grad()
                return
            skip = None
        self.update(skip, grad_scale)

    @torch.no_grad()
    def update(self, skip: Tensor | None, scale: Tensor | None = None) -> None:
        """Do what `step` does on a device that runs ahead: every kernel looks at `skip` itself."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            algorithm = group["algorithm"]
            more = {"kernel": self._kernel} if algorithm == "adamw" else {}
            module_of(algorithm).update(group, weights, self.state, skip, scale, **more)

    def seed(self, step: int) -> None:
        """Say which step of the run comes: rounding at random, where there is any, is a function of it."""
        if isinstance(self._kernel, adamw.Rounded):
            self._kernel.step = step

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state of every weight; keep the groups' settings and the formats of the state."""
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        super().load_state_dict(dict(state_dict))
        for group, own in zip(self.param_groups, settings, strict=True):
            weights = group["params"]
            group.clear()
            group.update({**own, "params": weights})
            for weight in weights:
                state = self.state[weight]
                for name, value in state.items():
                    if name == "step":  # saved on one device, loaded on another
                        state[name] = value.to(device=local(weight).device, dtype=torch.float32)
                    else:
                        state[name] = value.to(group["state_dtype"])


def set_lr(optimizer: torch.optim.Optimizer, lr: float | Tensor) -> None:
    """Set the learning rate: every group's is `lr`, which may be a scalar on the device, times its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
