"""A rank's trace as columns: what ran on the GPU, what the host did meanwhile, what memory was taken."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from study.diagnosis.intervals import Floats, Intervals, union
from study.diagnosis.operations import Work, kind_of, work
from study.diagnosis.trace_file import AGAIN, TraceFile

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
NO_KEY = -1


@dataclass(frozen=True)
class Spans:
    """Events that have a duration, in the order in which they begin.

    start, end [µs since the trace's first event]; name: place in the trace's `names`; thread: of the host, or a stream.
    correlation: joins a kernel to the call that launched it. operation: `External id`, joins both to the operation.
    """

    start: Floats
    end: Floats
    name: Integers
    thread: Integers
    correlation: Integers
    operation: Integers

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: Mask) -> Spans:
        """Return those that are chosen."""
        columns = (self.start, self.end, self.name, self.thread, self.correlation, self.operation)
        return Spans(*(column[chosen] for column in columns))  # type: ignore[arg-type]

    def covered(self, chosen: Mask | None = None) -> Intervals:
        """Return the time in which any of them goes on, or any of those that are chosen."""
        return union(self.start, self.end) if chosen is None else union(self.start[chosen], self.end[chosen])


@dataclass(frozen=True)
class Allocations:
    """Memory taken (bytes above zero) and given back, in time order. total: allocated afterwards, on that device."""

    moment: Floats
    bytes: Integers
    address: Integers
    total: Integers
    on_gpu: Mask
    thread: Integers


@dataclass(frozen=True)
class Trace:
    """What one rank recorded. shapes: the work of operations by their External id, where shapes were recorded."""

    path: Path
    rank: int
    devices: tuple[str, ...]
    names: tuple[str, ...]
    kernels: Spans
    calls: Spans
    operations: Spans
    marks: Spans
    allocations: Allocations
    shapes: dict[int, Work]
    events: int

    def kinds(self, spans: Spans) -> Integers:
        """Return each one's `operations.Kind`."""
        by_name = np.array([int(kind_of(name)) for name in self.names] or [0], dtype=np.int64)
        return by_name[spans.name]

    def named(self, spans: Spans, names: Iterable[int]) -> Mask:
        """Say which of them have one of these names, given as places in `names`."""
        chosen: Mask = np.isin(spans.name, np.fromiter(names, np.int64))
        return chosen

    @property
    def on_gpu(self) -> bool:
        """Whether it has kernels: else it is of a run on a CPU."""
        return len(self.kernels) > 0


def read_trace(path: Path, rank: int = 0) -> Trace:
    """Return the trace in a file, of the rank that it names, else of `rank`. ValueError where it is no whole one."""
    header, events = TraceFile(path).read()
    reading = _Reading()
    try:
        for event in events:
            reading.take_in(event)
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"{path}: event {reading.count} is not one of torch's profiler: {AGAIN}") from None
    used = header.devices[:1]
    return reading.trace(path, rank if header.rank is None else header.rank, used)


_ROOMS = {
    "kernel": 0, "gpu_memcpy": 0, "gpu_memset": 0,
    "cuda_runtime": 1, "cuda_driver": 1, "hip_runtime": 1,
    "cpu_op": 2,
    "user_annotation": 3,
}  # fmt: skip


@dataclass
class _Columns:
    start: array[float] = field(default_factory=lambda: array("d"))
    length: array[float] = field(default_factory=lambda: array("d"))
    name: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    operation: array[int] = field(default_factory=lambda: array("q"))

    def spans(self, zero: float) -> Spans:
        start, length = np.array(self.start, dtype=np.float64), np.array(self.length, dtype=np.float64)
        order = np.argsort(start, kind="stable")
        integers = (self.name, self.thread, self.correlation, self.operation)
        start = start[order] - zero
        return Spans(start, start + length[order], *(np.array(column, dtype=np.int64)[order] for column in integers))


class _Reading:
    """Collects events of a file."""

    def __init__(self) -> None:
        self.count = 0
        self._rooms = [_Columns() for _ in range(4)]
        self._names: dict[str, int] = {}
        self._threads: dict[object, int] = {}
        self._memory: list[tuple[float, int, int, int, bool, int]] = []
        self._shapes: dict[int, Work] = {}
        self._known: dict[tuple[str, str, str], Work | None] = {}

    def take_in(self, event: dict[str, Any]) -> None:
        """Add one event, if it is of a kind that tells something."""
        self.count += 1
        room = _ROOMS.get(event.get("cat", ""))
        if room is None or event["ph"] != "X":
            if event.get("name") == "[memory]":
                self._allocation(event)
            return
        columns, name, args = self._rooms[room], event["name"], event.get("args") or {}
        columns.start.append(event["ts"])
        columns.length.append(event["dur"])
        if room == 0 and "Collective name" in args:
            group = args.get("Process Group Ranks") or args.get("Process Group Name") or ""
            name = f"{name} ({args['Collective name']} {group})"
        columns.name.append(self._names.setdefault(name, len(self._names)))
        columns.thread.append(self._threads.setdefault(event["tid"], len(self._threads)))
        columns.correlation.append(args.get("correlation", NO_KEY))
        operation = args.get("External id", NO_KEY)
        columns.operation.append(operation)
        if room == 2 and "Input Dims" in args:
            self._shape(operation, name, args)

    def _shape(self, operation: int, name: str, args: dict[str, Any]) -> None:
        dims, types = args["Input Dims"], args.get("Input type") or ()
        seen = (name, str(dims), str(types))
        if seen not in self._known:
            self._known[seen] = work(name, dims, types)
        if (found := self._known[seen]) is not None:
            self._shapes[operation] = found

    def _allocation(self, event: dict[str, Any]) -> None:
        args = event["args"]
        on_gpu = args["Device Type"] != 0
        thread = self._threads.setdefault(event["tid"], len(self._threads))
        total = int(args.get("Total Allocated", 0))
        self._memory.append((event["ts"], int(args["Bytes"]), int(args["Addr"]), total, on_gpu, thread))

    def trace(self, path: Path, rank: int, devices: tuple[str, ...]) -> Trace:
        """Return all that was collected."""
        starts = [min(columns.start) for columns in self._rooms if columns.start]
        zero = min(starts, default=0.0)
        kernels, calls, operations, marks = (columns.spans(zero) for columns in self._rooms)
        return Trace(
            path, rank, devices, tuple(self._names), kernels, calls, operations, marks, self._allocations(zero),
            self._shapes, self.count,
        )  # fmt: skip

    def _allocations(self, zero: float) -> Allocations:
        self._memory.sort(key=lambda one: one[0])
        columns = list(zip(*self._memory, strict=True)) or [()] * 6
        moment, size, address, total, on_gpu, thread = columns
        places = np.array(address, dtype=np.uint64).astype(np.int64)
        return Allocations(
            np.array(moment, dtype=np.float64) - zero, np.array(size, dtype=np.int64), places,
            np.array(total, dtype=np.int64), np.array(on_gpu, dtype=np.bool_), np.array(thread, dtype=np.int64),
        )  # fmt: skip
