"""The lanes of a job: points run side by side in them, and one after the other in each if there are more points.

A lane is a process: a new `study.job` for each point, or a slot (`study.job.slot`) that keeps its trainer process for
the next point. A lane whose process has ended starts another, however its point ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from study.process import code_version
from study.process.children import Signals, Started, interpreter, spawn
from study.process.warm_process import WarmProcess
from study.records import ledger
from study.storage.layout import StudyFolder

POLL_SECONDS = 0.5
LEDGER_SECONDS = 5.0


@dataclass(frozen=True)
class LaneShare:
    """A lane's part of its job: the environment of its processes, and their cores (empty: not bound)."""

    environment: Mapping[str, str]
    cores: tuple[int, ...] = ()

    def bind(self, pid: int) -> None:
        """Bind a process to the cores."""
        if self.cores:
            with suppress(
                OSError
            ):  # the process has ended, or the site forbids binding: then it may use all of the job's cores
                os.sched_setaffinity(pid, self.cores)


class Lane(Protocol):
    """One place of a job."""

    def start(self, slot: int) -> Started:
        """Start the point at this place in the job; the lane's previous point has ended."""

    def retire(self) -> None:
        """Let the lane's process end: it gets no more points."""

    def close(self) -> None:
        """Wait for the lane's process to end."""


class FreshLane:
    """A `study.job` for each point."""

    def __init__(self, study: StudyFolder, batch: ledger.Batch, index: int, share: LaneShare) -> None:
        self._command = [*interpreter(), "-m", "study.job", str(study.path), "--name", batch.name]
        self._command += ["--index", str(index), "--slot"]
        self._share = share

    def start(self, slot: int) -> Started:
        """Start one."""
        # A session of its own: SLURM signals a task's whole process group, and a point must be signalled only once.
        process = spawn([*self._command, str(slot)], self._share.environment)
        self._share.bind(process.pid)
        return process

    def retire(self) -> None:
        """Do nothing: the process ends with its point."""

    def close(self) -> None:
        """Do nothing: the process has ended."""


class WarmLane:
    """A slot that takes one point after the other; a new slot if it has ended or the code was edited since."""

    def __init__(self, study: StudyFolder, batch: ledger.Batch, index: int, share: LaneShare) -> None:
        self._study, self._batch, self._first, self._share = study, batch, index * batch.points, share
        self._process: WarmProcess | None = None
        self._code = ""

    def start(self, slot: int) -> Started:
        """Send the point to the warm slot, or to a new one."""
        text = json.dumps({"name": self._batch.name, "index": self._first + slot}).encode()
        code = code_version.stamp()  # a warm process has the code as it was when it started
        if self._process is not None:
            served = self._process.send_next(text) if code == self._code else None
            if served is not None:
                return served
            self.close()
        command = [*interpreter(), "-m", "study.job.slot", str(self._study.path)]
        self._process, self._code = WarmProcess(command, self._share.environment), code
        self._share.bind(self._process.process.pid)
        return self._process.send_first(text)

    def retire(self) -> None:
        """Let the slot end."""
        if self._process is not None:
            self._process.close()

    def close(self) -> None:
        """End the slot and wait for that."""
        if self._process is not None:
            self._process.close()
            self._process.wait()
            self._process = None


class Queue:
    """The points of a job in order: each lane takes the next one when it is free."""

    def __init__(
        self,
        study: StudyFolder,
        batch: ledger.Batch,
        keys: Sequence[str],
        lanes: Sequence[Lane],
        tell: Callable[[Sequence[int]], None] = lambda busy: None,
    ) -> None:
        """tell: called with the numbers of the lanes that have a point, when these change."""
        self._study, self._batch = study, batch
        self._waiting = deque(enumerate(keys))
        self._lanes, self._free = lanes, list(reversed(lanes))
        self._running: dict[str, tuple[Started, Lane]] = {}
        self._signalled: set[str] = set()
        self._tell, self._told = tell, list[int]()
        self.codes: list[int] = []
        """Exit codes of the points that have ended."""

    @property
    def waiting(self) -> list[str]:
        """The points that have not begun."""
        return [key for _, key in self._waiting]

    def run(self, signals: Signals, sleep: Callable[[float], None] = time.sleep) -> None:
        """Run all points to their ends; once this process is told to end, only those that have begun."""
        self._fill(signals)
        last_look, size = time.monotonic(), -1
        while self._running:
            sleep(POLL_SECONDS)
            self._reap()
            self._fill(signals)
            if time.monotonic() - last_look >= LEDGER_SECONDS:
                last_look, size = time.monotonic(), self._end_cancelled(size)
        for lane in self._lanes:
            lane.close()

    def _fill(self, signals: Signals) -> None:
        """Give waiting points to free lanes; retire the lanes for which none is left."""
        while self._waiting and self._free and not signals.received:
            slot, key = self._waiting.popleft()
            if slot >= self._batch.lanes and not self._is_wanted(key):
                print(f"{key}: it is not wanted any more", file=sys.stderr)
                continue
            lane = self._free.pop()
            process = lane.start(slot)
            self._running[key] = process, lane
            signals.watch(process)
        busy = [place for place, lane in enumerate(self._lanes) if lane not in self._free]
        if busy != self._told:
            self._told = busy
            self._tell(busy)
        if signals.received or not self._waiting:
            for lane in self._free:
                lane.retire()

    def _reap(self) -> None:
        for key, (process, lane) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[key]
                self._free.append(lane)
                self.codes.append(code)

    def _is_wanted(self, key: str) -> bool:
        """Return whether a point that waited is still to run in this job; True if the ledger cannot be read."""
        try:
            known = ledger.read(self._study)
        except (OSError, ValueError):
            return True  # its own process checks again
        return key not in known.cancelled and known.current.get(key) == self._batch.name

    def _end_cancelled(self, size: int) -> int:
        """Signal running points that were cancelled; return the ledger's size, for the next call's `size`."""
        try:
            now = self._study.ledger.stat().st_size
            cancelled = frozenset() if now == size else ledger.read(self._study).cancelled
        except (OSError, ValueError):
            return size  # unreadable for now: try again later
        for key in cancelled & (self._running.keys() - self._signalled):
            self._signalled.add(key)
            self._running[key][0].send_signal(signal.SIGTERM)
        return now
