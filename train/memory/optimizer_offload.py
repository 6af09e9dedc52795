"""Optimizer moments that wait in the CPU's memory while forward and backward passes need the device's.

They are fetched for the update, when activations are gone, and sent back after it. The peak is then the larger of
activations and moments instead of their sum; the price is their way over the bus twice a step. Parameters that lie on
the CPU altogether are sharded data parallelism's affair (train.parallel.fsdp).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.core.dtensor import is_dtensor, local


class OffloadedState:
    """Moves an optimizer's tensors off the device after each step and back before the next."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        """The state is on the CPU from the first step's end on; `device` is where steps run."""
        self.device = device
        self._pinned: dict[tuple[int, str], Tensor] = {}
        self._handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    def remove(self) -> None:
        """Stop moving; the state stays where it is."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._move(optimizer, to_device=True)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._move(optimizer, to_device=False)

    def _move(self, optimizer: torch.optim.Optimizer, to_device: bool) -> None:
        for weight, state in optimizer.state.items():
            for name, value in state.items():
                if not isinstance(value, Tensor) or value.dim() == 0:
                    continue  # step counts stay where the optimizer wants them
                part = local(value)
                if to_device:
                    moved = part.to(self.device, non_blocking=True)
                else:
                    moved = self._host(id(weight), name, part)
                    moved.copy_(part, non_blocking=True)
                if is_dtensor(value):
                    value._local_tensor = moved
                else:
                    state[name] = moved
        if not to_device and self.device.type == "cuda":
            # Device copies may be freed only once they are read, host copies read only once they are written.
            torch.cuda.current_stream(self.device).synchronize()

    def _host(self, weight: int, name: str, like: Tensor) -> Tensor:
        """Return the CPU buffer of one moment, page-locked where a GPU copies into it, made once."""
        buffer = self._pinned.get((weight, name))
        if buffer is None or buffer.shape != like.shape:
            buffer = torch.empty_like(like, device="cpu", pin_memory=self.device.type == "cuda")
            self._pinned[weight, name] = buffer
        return buffer
