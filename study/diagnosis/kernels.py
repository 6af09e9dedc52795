"""The kernels (on a CPU: operations) that take most time, what they achieve, and who makes the host wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from study.diagnosis.intervals import Floats
from study.diagnosis.operations import Kind, kind_of
from study.diagnosis.shares import SYNC, clipped
from study.diagnosis.trace import NO_KEY, Spans, Trace
from study.diagnosis.windows import Window, work_of
from train.spec.device_peaks import Ceilings, ceilings

_ITEM = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")


@dataclass(frozen=True)
class Kernel:
    """All launches of a kernel, per step: seconds, calls, and their share of the time in kernels of that kind's room.

    flops, bytes: per second, from shapes; None where the trace has none. of_ceiling: the better of the two against
    what the device was measured, or is said, to do; None where that is not known.
    """

    name: str
    kind: str
    seconds: float
    calls: float
    share: float
    flops: float | None = None
    bytes: float | None = None
    of_ceiling: float | None = None


@dataclass(frozen=True)
class Sync:
    """A call in which the host waited for the GPU, per step. owner: the operation that made it."""

    call: str
    owner: str
    calls: float
    seconds: float


def top_kernels(trace: Trace, window: Window, count: int) -> list[Kernel]:
    """Return the kernels that take most time, or of a CPU's trace the operations by their own time."""
    work = work_of(trace)
    took = clipped(work, window) if trace.on_gpu else _own_time(work, window)
    total = np.zeros(len(trace.names))
    np.add.at(total, work.name, took)
    calls = np.bincount(work.name[took > 0], minlength=len(trace.names))
    rates = _rates(trace, work, took)
    known = ceilings(trace.devices[0]) if trace.devices else None
    found = []
    for place in np.argsort(-total, kind="stable")[:count]:
        if total[place] <= 0:
            break
        flops, size, form = rates.get(int(place), (None, None, ""))
        part = None if known is None else _part(known, flops, size, form)
        seconds, name = float(total[place]) / 1e6 / window.steps, trace.names[place]
        share = float(total[place] / total.sum())
        each = float(calls[place]) / window.steps
        found.append(Kernel(name, kind_of(name).name.lower(), seconds, each, share, flops, size, part))
    return found


def memory_share(trace: Trace, window: Window) -> float:
    """Return the share of calculating kernels' time in those that are bound by memory, 0 to 1.

    Those are all but products and attention, and products whose shapes say too little arithmetic for their bytes.
    """
    work, kinds = work_of(trace), trace.kinds(work_of(trace))
    took = clipped(work, window) if trace.on_gpu else _own_time(work, window)
    light = kinds == Kind.MEMORY
    known = ceilings(trace.devices[0]) if trace.devices else None
    if known is not None and trace.shapes:
        thin = [
            key for key, one in trace.shapes.items() if one.flops and one.flops / one.bytes < known.balance(one.format)
        ]
        light |= (kinds == Kind.MATMUL) & np.isin(work.operation, np.array(thin, dtype=np.int64))
    whole = float(took[np.isin(kinds, (Kind.MATMUL, Kind.MEMORY))].sum())
    return float(took[light].sum()) / whole if whole else 0.0


def syncs(trace: Trace, window: Window, count: int) -> list[Sync]:
    """Return where the host waited for the GPU, most time first; nothing of a CPU's trace."""
    calls = trace.calls
    chosen = [place for place, name in enumerate(trace.names) if SYNC.match(name)]
    waits = calls.where(trace.named(calls, chosen) & (calls.start < window.end) & (calls.end > window.start))
    owners = dict(zip(trace.operations.operation.tolist(), trace.operations.name.tolist(), strict=True))
    items = trace.operations.where(
        trace.named(trace.operations, (n for n, name in enumerate(trace.names) if name in _ITEM))
    )
    found: dict[tuple[str, str], list[float]] = {}
    for name, key, start, end in zip(waits.name, waits.operation, waits.start, waits.end, strict=True):
        inside = items.name[(items.start <= start) & (items.end >= end)]
        owner = inside[0] if len(inside) else owners.get(int(key)) if key != NO_KEY else None
        said = "" if owner is None else trace.names[owner]
        found.setdefault((trace.names[name], said), []).append(float(end - start))
    each = [
        Sync(call, owner, len(took) / window.steps, sum(took) / 1e6 / window.steps)
        for (call, owner), took in found.items()
    ]
    return sorted(each, key=lambda one: -one.seconds)[:count]


def copies_to_host(trace: Trace, window: Window) -> float:
    """Return how many copies went from the GPU to the host in a step."""
    names = [place for place, name in enumerate(trace.names) if name.startswith("Memcpy DtoH")]
    return float((trace.named(trace.kernels, names) & (clipped(trace.kernels, window) > 0)).sum()) / window.steps


def launches(trace: Trace, window: Window) -> tuple[float, float]:
    """Return kernels in a step (on a CPU: operations), and their median duration [s]."""
    took = clipped(work_of(trace), window)
    took = took[took > 0]
    return len(took) / window.steps, float(np.median(took)) / 1e6 if len(took) else 0.0


def replayed(trace: Trace, window: Window) -> float:
    """Return the share of a step's kernels that were launched as part of a CUDA graph."""
    calls = trace.calls
    names = [place for place, name in enumerate(trace.names) if "GraphLaunch" in name]
    there = clipped(trace.kernels, window) > 0
    if not there.any():
        return 0.0
    graphs = calls.correlation[trace.named(calls, names)]
    return float(np.isin(trace.kernels.correlation[there], graphs[graphs != NO_KEY]).mean())


def _own_time(operations: Spans, window: Window) -> Floats:
    """Return each operation's time [µs] in the window less that of the operations that it calls."""
    own = clipped(operations, window)
    for thread in np.unique(operations.thread):
        places = np.flatnonzero(operations.thread == thread)
        order = places[np.lexsort((-operations.end[places], operations.start[places]))]
        whole, ends, stack = own.copy(), operations.end, list[int]()
        for place in order.tolist():
            while stack and ends[stack[-1]] <= operations.start[place]:
                stack.pop()
            if stack:
                own[stack[-1]] -= whole[place]
            stack.append(place)
    clean: Floats = np.maximum(own, 0.0)
    return clean


def _rates(trace: Trace, work: Spans, took: Floats) -> dict[int, tuple[float | None, float, str]]:
    """Return FLOP/s (products only) and bytes/s of kernels with shapes, and the format, by name.

    An operation's work is counted to the longest of its kernels.
    """
    longest: dict[int, int] = {}
    for place in np.flatnonzero((took > 0) & (work.operation != NO_KEY)).tolist():
        key = int(work.operation[place])
        if key in trace.shapes and (key not in longest or took[place] > took[longest[key]]):
            longest[key] = place
    sums: dict[int, list[float]] = {}
    formats: dict[int, str] = {}
    for key, place in longest.items():
        whole = float(work.end[place] - work.start[place])
        name, load = int(work.name[place]), trace.shapes[key]
        one = sums.setdefault(name, [0.0, 0.0, 0.0])
        one[0] += load.flops
        one[1] += load.bytes
        one[2] += whole / 1e6
        formats[name] = load.format
    return {
        name: (flops / seconds if flops else None, size / seconds, formats[name])
        for name, (flops, size, seconds) in sums.items()
        if seconds > 0
    }


def _part(known: Ceilings, flops: float | None, size: float | None, form: str) -> float | None:
    parts: Sequence[float] = [
        *([flops / known.flops(form)] if flops else []),
        *([size / known.bandwidth] if size else []),
    ]
    return max(parts, default=None)
