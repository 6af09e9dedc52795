"""Where the time of a step goes: data, forward, backward, optimizer; the same phases as NVTX ranges and in traces.

On a CPU phases are timed by the host's clock. On a GPU by events in its stream, from the first kernel of a phase to its
last: communication that nothing overlaps counts to the phase that waits for it (train.metrics.profiler tells it
apart), and `data` is what the host spent on the batch, which only costs time where the GPU is idle by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PHASES = ("data", "forward", "backward", "optimizer")


class Clock:
    """Times the phases of one step at a time; `begin(timed=False)` lets a step pass for nothing."""

    def __init__(self, device: torch.device, nvtx: bool = False) -> None:
        self._on_gpu = device.type == "cuda"
        self._nvtx = nvtx and self._on_gpu
        self._timed = False
        self._times = Times()
        self._marked = False

    def begin(self, timed: bool, marked: bool = False) -> Times:
        """Start a step; return its times, which fill while it runs. marked: torch's profiler records its phases."""
        self._timed, self._marked = timed, marked
        self._times = Times()
        return self._times

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs in this context to phase `name`; phases may come several times."""
        if self._marked:
            with torch.profiler.record_function(name):
                yield from self._timing(name)
        else:
            yield from self._timing(name)

    def _timing(self, name: str) -> Iterator[None]:
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
        if not self._timed:
            yield
        elif self._on_gpu and name != "data":
            start, end = _event(), _event()
            start.record()
            yield
            end.record()
            self._times.events.append((name, start, end))
        else:
            began = time.perf_counter()
            yield
            self._times.host.append((name, time.perf_counter() - began))
        if self._nvtx:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Times:
    """Phases of one step: seconds by the host, and pairs of events on the device."""

    def __init__(self) -> None:
        self.host: list[tuple[str, float]] = []
        self.events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def seconds(self) -> dict[str, float]:
        """Return each phase's time [s], of those that there were; the device must have finished the step."""
        total: dict[str, float] = {}
        for name, seconds in self.host:
            total[name] = total.get(name, 0.0) + seconds
        for name, start, end in self.events:
            total[name] = total.get(name, 0.0) + start.elapsed_time(end) / 1000
        return total


UNTIMED = Clock(torch.device("cpu"))
"""A clock that never times, for steps taken outside of a run."""
