"""Dynamic loss scaling for fp16 (Micikevicius et al. 2018, "Mixed precision training", section 3.2), on the device.

fp16 gradients below 6e-8 are zero. The loss is multiplied by a power of two, the gradients are divided by it again,
and where one of them overflowed, the step is skipped and the factor halved; after `growth_steps` steps without an
overflow it is doubled. Nothing here waits for the device: the factor, the count and the verdict stay tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.core.dtensor import local

_STATE = ("scale", "good_steps", "overflows", "smallest")


class LossScaler:
    """The factor on the loss and its history; the state is four scalars, which stay where they are on the device."""

    def __init__(self, device: torch.device, scale: float, growth_steps: int, enabled: bool = True) -> None:
        """`scale` is the first factor; disabled, it is 1 and stays 1."""
        self.enabled = enabled
        self.growth_steps = growth_steps
        self.scale = torch.full((), scale if enabled else 1.0, dtype=torch.float32, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self.overflows = torch.zeros((), dtype=torch.int64, device=device)
        self.smallest = self.scale.clone()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The state, where it is on the device."""
        return tuple(getattr(self, name) for name in _STATE)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the factor, to be differentiated."""
        return loss * self.scale.to(loss.dtype) if self.enabled else loss

    @torch.no_grad()
    def unscale_(self, grads: Sequence[Tensor]) -> None:
        """Divide gradients by the factor, in place.

        A gradient that is not finite stays so. The norm of all gradients, which every rank knows, then is not finite
        either, and the step is skipped (train.health.nonfinite.skip_flag).
        """
        inverse = self.scale.reciprocal()
        by_device: dict[torch.device, list[Tensor]] = {}
        for grad in grads:
            part = local(grad)
            if part.numel():
                by_device.setdefault(part.device, []).append(part)
        for device, tensors in by_device.items():
            torch._foreach_mul_(tensors, inverse.to(device))

    @torch.no_grad()
    def update(self, found: Tensor) -> None:
        """Move the factor after a step: half of it where `found` is not 0, twice after enough steps where it is 0."""
        if not self.enabled:
            return
        overflow = found.to(self.scale.device) != 0
        self.overflows += overflow
        self.good_steps.copy_(torch.where(overflow, 0, self.good_steps + 1))
        grow = self.good_steps >= self.growth_steps
        largest = torch.finfo(torch.float32).max / 2
        grown = torch.where(grow & (self.scale < largest), self.scale * 2, self.scale)
        self.scale.copy_(torch.where(overflow, (self.scale / 2).clamp_min(2.0**-24), grown))
        self.good_steps.copy_(torch.where(grow, 0, self.good_steps))
        self.smallest.copy_(torch.minimum(self.smallest, self.scale))

    def metrics(self) -> dict[str, Tensor]:
        """Return the factor of the next step, its smallest so far and the steps lost to overflow, on the device."""
        if not self.enabled:
            return {}
        return {"loss_scale": self.scale, "loss_scale_smallest": self.smallest, "overflows": self.overflows}

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint needs, plain numbers, the same on every rank; empty where there is nothing to scale.

        Waits for the device.
        """
        return {name: getattr(self, name).item() for name in _STATE} if self.enabled else {}

    def load_state_dict(self, state: Mapping[str, float] | None) -> None:
        """Go on from a checkpoint's state; an empty one, as of a run that did not scale, changes nothing."""
        if self.enabled and state:
            for name in _STATE:
                getattr(self, name).fill_(state[name])
