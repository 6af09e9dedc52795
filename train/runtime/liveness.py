"""A rank's signs of progress: the heartbeat file for its launcher, the watchdog for the other ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from train.runtime.distributed import World
from train.runtime.heartbeat import Heartbeat
from train.runtime.watchdog import watch
from train.spec.config import RuntimeConfig
from train.state import TrainState


class Liveness:
    """The heartbeat and the watchdog of this rank, and how long it spends on what."""

    def __init__(self, state: TrainState, world: World, runtime: RuntimeConfig, folder: Path) -> None:
        """Begin to watch this rank, which has met the others and stands where `state` says."""
        self._state, self._phase = state, "start"
        self._watchdog = watch(world, runtime, folder)
        self._heartbeat = Heartbeat.of(os.environ, runtime.start_seconds)

    def beat(self, allow: float = 0.0) -> None:
        """Say that this rank moves; `allow` is how long what follows may take [s]."""
        self._heartbeat.beat(self._state.step, self._phase, allow)
        if self._watchdog is not None:
            self._watchdog.beat(self._state.step, allow)

    def took(self, seconds: float, phases: Mapping[str, float] | None) -> None:
        """Say how long a step took [s], and its phases where they were timed."""
        self._heartbeat.took(seconds)
        if phases is not None:
            self._heartbeat.alone(phases)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count what runs here to `phase` (train, validation, checkpoint), and tell that it runs.

        Of a training step this counts nothing: how long the device takes is known later.
        """
        self._phase, began = phase, time.perf_counter()
        yield
        if phase != "train":
            self._state.seconds[phase] += time.perf_counter() - began
        self.beat()

    def close(self) -> None:
        """Stop watching."""
        self._heartbeat.close()
        if self._watchdog is not None:
            self._watchdog.close()
