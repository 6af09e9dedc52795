"""Values of a step on their way from the device, and how long it took, read one step late so that nothing waits.

A GPU computes while the host prepares the next step. Asking for a loss at once would let it run dry; asking for the
previous step's costs nothing, as it is done by then. On a CPU the values are there and come at once.

A step's time is that between two marks in what the device does, one before its first work and one after its last. Where
the device is still busy with the step before, the first mark is reached when that ends. So steps add up to the time
spent on training, and what runs between two of them, a validation or a checkpoint, counts to neither, whenever the host
gets to read it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

Stamp = TypeVar("Stamp")


class Mark(Protocol):
    """A moment, reached when the device has done all that it was given before."""

    def wait(self) -> None:
        """Wait until it is reached."""

    def since(self, earlier: Any, /) -> float:
        """Return the time from an earlier mark to this one [s]; both are reached."""


class HostMark:
    """Now: a CPU has done what it was given."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def wait(self) -> None:
        """Return at once."""

    def since(self, earlier: HostMark, /) -> float:
        """Return the time between two marks [s]."""
        return self._at - earlier._at


class DeviceMark:
    """The end of what is in the current stream of the GPU."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        """Wait for the GPU."""
        self._event.synchronize()

    def since(self, earlier: DeviceMark, /) -> float:
        """Return the time between two marks [s]."""
        milliseconds: float = earlier._event.elapsed_time(self._event)
        return milliseconds / 1000


class Arrived(NamedTuple, Generic[Stamp]):
    """A step that is over: its stamp, its scalars and its time [s]."""

    stamp: Stamp
    values: list[float]
    seconds: float


class Late(Generic[Stamp]):
    """A queue of steps: what the host knows of each (its stamp), and scalars that are still on the device."""

    def __init__(self, device: torch.device, mark: Callable[[], Mark] | None = None) -> None:
        """`mark` makes the marks of another device that is as far behind as a GPU."""
        self._device = device
        self._behind = mark is not None or device.type == "cuda"
        self._mark: Callable[[], Mark] = mark or (DeviceMark if self._behind else HostMark)
        self._began: Mark | None = None
        self._waiting: deque[tuple[Stamp, Tensor, Mark, Mark]] = deque()

    def begin(self) -> None:
        """Say that a step begins here."""
        self._began = self._mark()

    def put(self, stamp: Stamp, scalars: Sequence[Tensor]) -> None:
        """Say that the step ends here, and send its scalars to the host, as fp64."""
        assert self._began is not None, "no step has begun"
        values = torch.stack([scalar.detach().to(self._device, torch.float64) for scalar in scalars])
        if self._device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
        self._waiting.append((stamp, values, self._began, self._mark()))
        self._began = None

    def arrived(self, everything: bool = False) -> Iterator[Arrived[Stamp]]:
        """Yield what is there, oldest first: on a GPU all but the latest step, with `everything` that one too."""
        keep = 1 if self._behind and not everything else 0
        while len(self._waiting) > keep:
            stamp, values, began, ended = self._waiting.popleft()
            ended.wait()
            yield Arrived(stamp, values.tolist(), ended.since(began))

    def forget(self) -> float:
        """Drop what has not been read, as the run goes back to before it; return the time that it took [s]."""
        return sum(step.seconds for step in self.arrived(everything=True))
