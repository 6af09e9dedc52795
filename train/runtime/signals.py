"""Stopping on request: signals only raise a flag, which the training loop reads at the step boundary."""

from __future__ import annotations

import signal
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class StopFlag:
    """Remembers the first stop signal received; never interrupts what runs."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.received is not None

    def install(self) -> None:
        """Catch every stop signal from now on; only the main thread of a process may do so."""
        for number in STOPPING:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
