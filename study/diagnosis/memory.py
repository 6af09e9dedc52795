"""Memory over the recording, and who held it at the peak, where the trace has allocations (profile.memory=true)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from study.diagnosis.trace import Spans, Trace
from study.diagnosis.windows import STEP

POINTS = 200
BEFORE = "allocated before the recording"


@dataclass(frozen=True)
class Memory:
    """Memory of the GPU, or of the CPU where it has none.

    timeline: at most 200 pairs of moment [s since the trace began] and bytes. owners: bytes at the peak by phase and
    operation, largest first; what was allocated before the recording has no other owner.
    """

    device: str
    peak_bytes: int
    peak_moment: float
    timeline: list[tuple[float, int]]
    owners: list[tuple[str, int]]


def memory_of(trace: Trace, count: int) -> Memory | None:
    """Return what the trace says of memory; None where it has no allocations."""
    taken = trace.allocations
    if not len(taken.moment):
        return None
    gpu = bool(taken.on_gpu.any())
    chosen = np.flatnonzero(taken.on_gpu == gpu)
    total = taken.total[chosen]
    if not total.any():  # of a CPU torch counts none: what was taken since the recording began
        total = np.cumsum(taken.bytes[chosen])
    peak = int(total.argmax())
    live: dict[int, int] = {}
    for place in chosen[: peak + 1].tolist():
        if taken.bytes[place] > 0:
            live[int(taken.address[place])] = place
        else:
            live.pop(int(taken.address[place]), None)
    owned: dict[str, int] = {}
    steps = [place for place, name in enumerate(trace.names) if name.startswith(STEP)]
    phases = _outermost(trace.marks.where(~trace.named(trace.marks, steps)))
    by_thread = {int(thread): _of_thread(trace, int(thread)) for thread in np.unique(taken.thread)}
    for place in live.values():
        moment = float(taken.moment[place])
        names = [_at(trace, spans, moment) for spans in (phases, by_thread[int(taken.thread[place])])]
        owner = " / ".join(name for name in names if name) or "elsewhere"
        owned[owner] = owned.get(owner, 0) + int(taken.bytes[place])
    earlier = int(total[peak]) - sum(owned.values())
    if earlier > 0:
        owned[BEFORE] = earlier
    every = max(1, -(-len(chosen) // POINTS))
    kept = sorted({*range(0, len(chosen), every), peak})[: POINTS + 1]
    timeline = [(float(taken.moment[chosen[place]]) / 1e6, int(total[place])) for place in kept]
    largest = sorted(owned.items(), key=lambda one: -one[1])[:count]
    return Memory("GPU" if gpu else "CPU", int(total[peak]), float(taken.moment[chosen[peak]]) / 1e6, timeline, largest)


def _of_thread(trace: Trace, thread: int) -> Spans:
    return _outermost(trace.operations.where(trace.operations.thread == thread))


def _outermost(spans: Spans) -> Spans:
    """Return those that begin when all before them have ended."""
    before = np.concatenate(([-np.inf], np.maximum.accumulate(spans.end)[:-1])) if len(spans) else spans.end
    return spans.where(spans.start >= before)


def _at(trace: Trace, spans: Spans, moment: float) -> str | None:
    """Return the name of the one that goes on at that moment; None where there is none."""
    place = int(np.searchsorted(spans.start, moment, side="right")) - 1
    return trace.names[spans.name[place]] if place >= 0 and spans.end[place] >= moment else None
