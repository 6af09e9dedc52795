"""AdamW (Loshchilov and Hutter 2019) on this rank's shards, in one fused call for all weights of a group."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.adamw.api import adamw_step
from kernels.core.dispatch import use_triton
from kernels.core.dtensor import local
from train.optim.sharded import take_gradient
from train.precision.stochastic_rounding import copy_rounded_
from train.spec.config import OptimConfig


class Kernel(Protocol):
    """One AdamW step in place over lists of tensors of one device and format.

    steps already count this step. grad_scale: multiplies the gradients, which may be changed. found_inf: a float
    scalar on the device, 1 to leave everything as it is.
    """

    def __call__(
        self,
        weights: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        steps: list[Tensor],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """Change weights and moments."""


def fused(
    weights: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    *,
    grad_scale: Tensor | None = None,
    **options: Any,
) -> None:
    """Torch's fused AdamW kernel: weights, gradients and moments of one format. It takes no factor on gradients."""
    if grad_scale is not None:
        torch._foreach_mul_(grads, grad_scale)
    torch._fused_adamw_(weights, grads, exp_avgs, exp_avg_sqs, [], steps, amsgrad=False, maximize=False, **options)


def fastest(
    weights: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    **options: Any,
) -> None:
    """Our own kernel on a GPU, where it takes two thirds of the time and clips on the way; torch's elsewhere."""
    everything = [*weights[:1], *grads[:1], *exp_avgs[:1], *exp_avg_sqs[:1]]
    if not use_triton("adamw_step", *everything):
        fused(weights, grads, exp_avgs, exp_avg_sqs, steps, **options)
        return
    betas = (options["beta1"], options["beta2"])
    rest = {name: options[name] for name in ("lr", "weight_decay", "eps", "grad_scale")}
    step = common(steps)
    adamw_step(weights, grads, exp_avgs, exp_avg_sqs, step=step, betas=betas, skip=options["found_inf"], **rest)


def common(steps: list[Tensor]) -> Tensor:
    """Return the step count that all weights of a group share, where one kernel corrects all moments by it.

    They do as every weight has a gradient in every step. On a GPU the check runs there: nothing waits for it.
    """
    together = torch.stack(steps)
    torch._assert_async((together == together[0]).all(), "weights of one group have taken different numbers of steps")
    return steps[0]


class Rounded:
    """AdamW with moments in bf16 that are rounded stochastically, so that updates below their last bit are not lost.

    One weight at a time goes through fp32, which is all the memory it takes. The random bits are a function of `step`
    and of the weight's name, whatever lies beside it here: the same for all copies, also those of a tied embedding in
    two stages of a pipeline, and after a restart.
    """

    def __init__(self) -> None:
        self.step = 0
        self.names: list[str] = []
        """Of the weights of the next call."""

    def __call__(
        self,
        weights: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        steps: list[Tensor],
        **options: Any,
    ) -> None:
        """Change weights and moments."""
        if (scale := options.pop("grad_scale")) is not None:
            torch._foreach_mul_(grads, scale)
        generator = torch.Generator(weights[0].device)
        every = zip(self.names, weights, grads, exp_avgs, exp_avg_sqs, steps, strict=True)
        for name, weight, grad, first, second, step in every:
            generator.manual_seed(zlib.crc32(f"{name} {self.step}".encode()))
            means, squares = first.float(), second.float()
            fused([weight], [grad], [means], [squares], [step], **options)
            copy_rounded_(first, means, generator)
            del means  # the rounding of the other one is the peak of the update
            copy_rounded_(second, squares, generator)


def settings(optim: OptimConfig) -> dict[str, Any]:
    """Return what its groups hold of the config."""
    # "fused" is torch's word for a step count that lives on the weight's device; checkpoints go by it.
    return {"betas": (optim.beta1, optim.beta2), "eps": optim.eps, "fused": True}


def update(
    group: Mapping[str, Any],
    weights: Sequence[Tensor],
    state: Mapping[Tensor, dict[str, Any]],
    skip: Tensor | None,
    scale: Tensor | None,
    *,
    kernel: Kernel,
) -> None:
    """Take one step of a group. Elementwise, so that working on shards gives the numbers of the whole."""
    beta1, beta2 = group["betas"]
    dtype = group["state_dtype"]
    for weight in weights:
        own = state[weight]
        if not own:
            own["step"] = torch.zeros((), dtype=torch.float32, device=local(weight).device)
            own["exp_avg"] = torch.zeros_like(weight, dtype=dtype)
            own["exp_avg_sq"] = torch.zeros_like(weight, dtype=dtype)
    for device, members in _by_device(weights).items():
        stop = None if skip is None else skip.to(device)
        steps = [state[weight]["step"] for weight in members]
        torch._foreach_add_(steps, 1.0)
        # A rank may hold nothing of a short weight; its step counts all the same, as any rank's count may be the saved.
        held = [weight for weight in members if local(weight).numel()]
        if held:
            if isinstance(kernel, Rounded):
                names = dict(zip(group["params"], group["names"], strict=True))
                kernel.names = [names[weight] for weight in held]
            kernel(
                [local(weight) for weight in held],
                [take_gradient(weight).to(weight.dtype) for weight in held],
                [local(state[weight]["exp_avg"]) for weight in held],
                [local(state[weight]["exp_avg_sq"]) for weight in held],
                [state[weight]["step"] for weight in held],
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                grad_scale=None if scale is None else scale.to(device),
                found_inf=stop,
            )
        for weight in members:
            weight.grad = None
        if stop is not None:
            torch._foreach_sub_(steps, [stop] * len(steps))


def _by_device(weights: Sequence[Tensor]) -> dict[torch.device, list[Tensor]]:
    """Return the weights by device: offloaded ones lie beside others."""
    groups: dict[torch.device, list[Tensor]] = {}
    for weight in weights:
        groups.setdefault(local(weight).device, []).append(weight)
    return groups
