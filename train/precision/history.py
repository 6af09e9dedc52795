"""Delayed scaling: factors from the largest magnitudes of the steps before (Micikevicius et al. 2022, section 3.1).

A product in fp8 has three: of what goes in, of its weight, and of the gradient that comes back. Their factors stand
still within a step, so that its micro-batches, and a forward pass that is computed again, narrow alike. What is seen is
a maximum, to which it makes no difference to be seen twice. After the update the ranks' largest becomes the newest of
`fp8_history` steps, so all ranks go on with the same factors. A larger number than any before saturates.
Until a step has been seen, and for what was zero all the time, the tensor itself says its factor. An evaluation uses
the factors and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.precision.float8 import Delayed, products

_KINDS = 3
"""Input, weight, gradient."""


class History:
    """The largest magnitudes of the last steps, (steps, 3 x products) fp32 on the device; nothing waits for it."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device, steps: int, shared: bool = False) -> None:
        """Give every `Delayed` product in these modules its place; `shared`: other ranks have the same products."""
        found = [layer.linear[name] for module in modules for layer, name in products(module)]  # type: ignore[index]
        delayed = [product for product in found if isinstance(product, Delayed)]
        self.shared = shared
        self.past = torch.zeros(steps, _KINDS * len(delayed), dtype=torch.float32, device=device)
        self.largest = torch.zeros(self.past.shape[1], dtype=torch.float32, device=device)
        # Tensors of their own: views of one would share its count of changes, by which autograd knows that what a
        # (compiled) forward pass has kept is still the same.
        self._seen = [torch.zeros((), dtype=torch.float32, device=device) for _ in self.largest]
        for i, product in enumerate(delayed):
            at = _KINDS * i
            product.largest = self.largest[at : at + _KINDS]
            product.seen = self._seen[at], self._seen[at + 1], self._seen[at + 2]

    @torch.no_grad()
    def update(self, skip: Tensor) -> None:
        """End a step, on all ranks; a skipped one (not 0) leaves the history unchanged."""
        if not self.past.numel():
            return
        # What is not finite has made the step a skipped one; on no rank may it hide the others' numbers.
        seen = self.seen.nan_to_num_(0.0, 0.0)
        if self.shared:
            dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        moved = torch.cat([seen[None], self.past[:-1]])
        self._start(torch.where(skip.to(self.past.device) != 0, self.past, moved))

    @property
    def seen(self) -> Tensor:
        """What this rank has seen in the step so far, (3 x products,), a copy."""
        return torch.stack(self._seen)

    def _start(self, past: Tensor) -> None:
        self.past.copy_(past)
        self.largest.copy_(self.past.amax(0))
        torch._foreach_zero_(self._seen)

    def state_dict(self) -> list[list[float]]:
        """Return what a checkpoint needs, as JSON keeps it to the last bit; waits for the device."""
        found: list[list[float]] = self.past.tolist()
        return found

    def load_state_dict(self, state: Sequence[Sequence[float]] | None) -> None:
        """Go on from a checkpoint's state; an empty one changes nothing."""
        if state:
            self._start(torch.tensor(state, dtype=torch.float32).reshape(self.past.shape))
