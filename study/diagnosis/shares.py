"""Where the time of a step went on one rank: computing, communication that nothing hides, copies, idle by its cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from study.diagnosis.intervals import (
    NOTHING,
    Floats,
    Intervals,
    clip,
    complement,
    difference,
    intersection,
    overlap,
    union,
    union_of,
)
from study.diagnosis.operations import Kind
from study.diagnosis.trace import Mask, Spans, Trace
from study.diagnosis.windows import Window

_INPUT = re.compile(r"^(data|enumerate\(DataLoader\).*)$")
_PIPELINE = re.compile(r"^(PP:|Forward \d|Backward \d)")
SYNC = re.compile(r"^(cuda|hip)(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy)$")
_ALLOCATE = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc|FreeHost)$")
_ROUND = 1.0
"""A GPU that runs dry during a synchronisation may be seen to do so a little after it [µs]."""


@dataclass(frozen=True)
class Split:
    """One rank's window, part by part [µs]; the parts add up to its length.

    compute: in which anything was calculated. communication: exposed, in which messages went and nothing was
    calculated, `pipeline` excepted: what of it a pipeline's rank waited for others. The rest of the parts is idle:
    input (the loop fetched a batch), sync (the host had waited for the GPU, and was late afterwards), allocator
    (cudaMalloc, cudaFree), host (it was slower than what it launched).
    """

    compute: float
    communication: float
    pipeline: float
    copy: float
    input: float
    sync: float
    allocator: float
    host: float

    def shares(self, length: float) -> dict[str, float]:
        """Return each part's share of a window of this length."""
        return {name: value / length for name, value in vars(self).items()}


@dataclass(frozen=True)
class RankTime:
    """How one rank spent its window. computing: when it calculated. hidden: share of communication under it, or None.

    communicating [µs]: with and without computation.
    """

    split: Split
    computing: Intervals
    communicating: float
    hidden: float | None


def spent(trace: Trace, window: Window) -> RankTime:
    """Return how a rank spent the window."""
    return _on_gpu(trace, window) if trace.on_gpu else _on_cpu(trace, window)


def _on_gpu(trace: Trace, window: Window) -> RankTime:
    work, kinds = trace.kernels, trace.kinds(trace.kernels)
    compute, talk, messages, copy = (
        clip(work.covered(np.isin(kinds, of)), window.start, window.end)
        for of in ((Kind.MATMUL, Kind.MEMORY), (Kind.COMMUNICATION, Kind.MESSAGE), (Kind.MESSAGE,), (Kind.COPY,))
    )
    exposed = difference(talk, compute)
    copying = difference(copy, union_of(compute, talk))
    waiting = _bubble(trace, work.where(kinds == Kind.MESSAGE), intersection(exposed, messages))
    idle = complement(union_of(compute, talk, copy), window.start, window.end)
    feeding = idle_by_cause(trace, idle)
    split = Split(compute.length, exposed.length - waiting, waiting, copying.length, *feeding)
    return RankTime(split, compute, talk.length, overlap(talk, compute))


def idle_by_cause(trace: Trace, idle: Intervals) -> tuple[float, float, float, float]:
    """Return how long [µs] the GPU had nothing to do because of input, synchronisation, allocation, the host."""
    waits = input_marks(trace)
    calls = trace.calls
    launchers = np.unique(calls.thread[np.isin(calls.correlation, trace.kernels.correlation)])
    of_host = np.isin(calls.thread, launchers)
    held = calls.covered(trace.named(calls, _matching(trace, _ALLOCATE)))
    fed = intersection(idle, waits)
    rest = difference(idle, waits)
    allocating = intersection(rest, held)
    rest = difference(rest, held)
    syncs = calls.where(of_host & trace.named(calls, _matching(trace, SYNC)))
    blocked = union(syncs.start, syncs.end + _ROUND)
    dry = blocked.holds(idle.start)
    after = intersection(rest, Intervals(idle.start[dry], idle.end[dry]))
    return fed.length, after.length, allocating.length, rest.length - after.length


def input_marks(trace: Trace) -> Intervals:
    """Return when the loop fetched a batch: the trainer's phase `data`, or torch's DataLoader."""
    return trace.marks.covered(trace.named(trace.marks, _matching(trace, _INPUT)))


def _bubble(trace: Trace, messages: Spans, exposed: Intervals) -> float:
    """Return for how long [µs] of its exposed messages a pipeline's rank waited: all that the fastest ones need not."""
    if not len(messages) or not any(_PIPELINE.match(trace.names[name]) for name in np.unique(trace.marks.name)):
        return 0.0
    needed = float((messages.end - messages.start).min())
    # Of each message the end is the transfer, all before it is waiting for the other rank to come.
    waiting = union(messages.start, np.maximum(messages.start, messages.end - needed))
    return intersection(exposed, waiting).length


def _on_cpu(trace: Trace, window: Window) -> RankTime:
    kinds = trace.kinds(trace.operations)
    messages = np.isin(kinds, (Kind.COMMUNICATION, Kind.MESSAGE))
    waits = clip(input_marks(trace), window.start, window.end)
    talk = difference(clip(trace.operations.covered(messages), window.start, window.end), waits)
    # An operation that waits for a message in it (autograd's, around a hook) does not calculate meanwhile.
    each = [_calculating(trace, thread, messages) for thread in np.unique(trace.operations.thread)]
    compute = difference(clip(union_of(*each) if each else NOTHING, window.start, window.end), waits)
    exposed = difference(talk, compute)
    waiting = _bubble(trace, trace.operations.where(kinds == Kind.MESSAGE), exposed)
    rest = window.length - compute.length - exposed.length - waits.length
    split = Split(compute.length, exposed.length - waiting, waiting, 0.0, waits.length, 0.0, 0.0, rest)
    return RankTime(split, compute, talk.length, overlap(talk, compute))


def _calculating(trace: Trace, thread: int, messages: Mask) -> Intervals:
    own = trace.operations.thread == thread
    return difference(trace.operations.covered(own & ~messages), trace.operations.covered(own & messages))


def _matching(trace: Trace, pattern: re.Pattern[str]) -> Iterable[int]:
    return [place for place, name in enumerate(trace.names) if pattern.match(name)]


def clipped(spans: Spans, window: Window) -> Floats:
    """Return how long [µs] each one lies in the window."""
    inside: Floats = np.minimum(spans.end, window.end) - np.maximum(spans.start, window.start)
    return np.maximum(inside, 0.0)
