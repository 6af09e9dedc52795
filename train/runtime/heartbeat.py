"""A heartbeat file per rank with its step, phase and pace, by which its launcher sees whether it makes progress.

`HEARTBEAT` in the environment names the file, `HEARTBEAT_WHERE` the node. The file is one line of JSON, written in
place at most once a second and whenever something begins that may take long; without the variable nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Self

FILE, WHERE = "HEARTBEAT", "HEARTBEAT_WHERE"
EVERY_SECONDS = 1.0
WIDTH = 320
FIRST = 3
"""So many of the first beats of each phase may take as long as a start: they compile, allocate, read anew."""
REMEMBERED = 32


class Heartbeat:
    """A rank's heartbeat: its step, its phase, how long steps take and may take.

    `own` is what a step costs this rank alone [s]: reading its batch and the forward pass, without waiting for others.
    start_seconds: how long the first of anything may take [s]. `path` None: nothing is written.
    """

    def __init__(
        self, path: str | None, where: str, start_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._where, self._start, self._clock = where, start_seconds, clock
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._own: deque[float] = deque(maxlen=REMEMBERED)
        self._beats = 0
        self._in_phase: Counter[str] = Counter()
        self._written = float("-inf")
        self._said: tuple[str, float] = ("", 0.0)
        self.beat(0, "start")

    @classmethod
    def of(cls, environment: Mapping[str, str], start_seconds: float) -> Self:
        """Return the heartbeat that the environment asks for."""
        return cls(environment.get(FILE), environment.get(WHERE, ""), start_seconds)

    def took(self, seconds: float) -> None:
        """Say how long a step took, by the clock on the wall [s]."""
        self._steps.append(seconds)

    def alone(self, seconds: Mapping[str, float]) -> None:
        """Say what the phases of a step took [s]; those that wait for no other rank are counted."""
        self._own.append(seconds.get("data", 0.0) + seconds.get("forward", 0.0))

    def beat(self, step: int, phase: str, allow: float = 0.0) -> None:
        """Say that this rank moves; what comes next may take `allow` seconds if that is longer than usual."""
        if self._file is None:
            return
        self._beats += 1
        self._in_phase[phase] += 1
        allow = max(allow, self._start if self._in_phase[phase] <= FIRST else 0.0)
        now = self._clock()
        if (phase, allow) == self._said and now - self._written < EVERY_SECONDS:
            return
        self._said, self._written = (phase, allow), now
        said = {
            "step": step,
            "phase": phase,
            "beats": self._beats,
            "allow": round(allow, 1),
            "median": _median(self._steps),
            "own": _median(self._own),
            "where": self._where,
            "time": round(time.time(), 2),
        }
        with contextlib.suppress(OSError):  # a full disk must not end a run that could go on
            os.pwrite(self._file, json.dumps(said).ljust(WIDTH).encode() + b"\n", 0)

    def close(self) -> None:
        """Close the file; it stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _median(values: deque[float]) -> float | None:
    return round(statistics.median(values), 5) if values else None
