"""Values of a step on their way from the device, read one step late so that nothing waits for them.

A GPU computes while the host prepares the next step. Asking for a loss at once would let it run dry; asking for the
previous step's costs nothing, as it is done by then. On a CPU the values are there and come at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

Stamp = TypeVar("Stamp")


class Late(Generic[Stamp]):
    """A queue of steps: what the host knows of each (its stamp), and scalars that the device still owes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: deque[tuple[Stamp, Tensor, torch.cuda.Event | None]] = deque()

    def put(self, stamp: Stamp, scalars: Sequence[Tensor]) -> None:
        """Send a step's scalars to the host, as fp64."""
        values = torch.stack([scalar.detach().to(self._device, torch.float64) for scalar in scalars])
        event = None
        if self._device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._waiting.append((stamp, values, event))

    def arrived(self, everything: bool = False) -> Iterator[tuple[Stamp, list[float]]]:
        """Yield what is there, oldest first: on a GPU all but the latest step, with `everything` that one too."""
        keep = 0 if everything or self._device.type != "cuda" else 1
        while len(self._waiting) > keep:
            stamp, values, event = self._waiting.popleft()
            if event is not None:
                event.synchronize()
            yield stamp, values.tolist()

    def forget(self) -> None:
        """Drop what has not been read: the run goes back to before it."""
        self._waiting.clear()
