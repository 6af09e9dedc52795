"""Which part of a trace is looked at: whole steps, as the GPU saw them, which lags behind the host that feeds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from study.diagnosis.intervals import Floats
from study.diagnosis.trace import NO_KEY, Integers, Spans, Trace

STEP = "ProfilerStep#"


@dataclass(frozen=True)
class Window:
    """From `start` to `end` [µs] there are `steps` steps. of_work: each piece of work's step; below 0: of none."""

    start: float
    end: float
    steps: int
    of_work: Integers

    @property
    def length(self) -> float:
        """Its length [µs]."""
        return self.end - self.start


def work_of(trace: Trace) -> Spans:
    """Return what counts as work: kernels and copies on the GPU; without any, operations on the CPU."""
    return trace.kernels if trace.on_gpu else trace.operations


def steps_of_host(trace: Trace) -> Spans:
    """Return the steps of a trace as the host marked them, as it ordered their work."""
    return trace.marks.where(trace.named(trace.marks, (n for n, s in enumerate(trace.names) if s.startswith(STEP))))


def window_of(trace: Trace) -> Window:
    """Return the steps of a trace that are looked at. ValueError where it has none.

    On a GPU they last from the end of one step's last kernel to the end of the next one's: the host may be a step or
    two ahead, so its own marks say when work was ordered, not when it was done. The first step then only says where
    the second begins. On a CPU they are the marked steps. What was begun, and had no work when recording ended, is left
    out.
    """
    marked = steps_of_host(trace)
    if not len(marked):
        raise ValueError(
            f"{trace.path} has no steps ({STEP}…): record it with torch.profiler's schedule and step(), which "
            "profile.start=3 does"
        )
    work = work_of(trace)
    if not len(work):
        raise ValueError(
            f"{trace.path} has steps, but no operation or kernel in them: record it again with profile.start=3"
        )
    of_work = _steps_of(trace, marked)
    there = np.unique(of_work[of_work >= 0])
    if not len(there):
        raise ValueError(f"{trace.path} has no operation or kernel in its steps: record it again with profile.start=3")
    if not trace.on_gpu:
        return Window(float(marked.start[there[0]]), float(marked.end[there[-1]]), len(there), of_work)
    last = {int(step): float(work.end[of_work == step].max()) for step in there[[0, -1]]}
    first_end, last_end = last[int(there[0])], last[int(there[-1])]
    if last_end <= first_end:  # one step, or the first one's work outlasts all others'
        begin = min(float(marked.start[there[0]]), float(work.start[of_work == there[0]].min()))
        return Window(begin, first_end, len(there), of_work)
    of_work = np.where(of_work == there[0], NO_KEY, of_work)
    return Window(first_end, last_end, len(there) - 1, of_work)


def _steps_of(trace: Trace, marked: Spans) -> Integers:
    """Return the step in which each piece of work was ordered: a kernel's by the call that launched it."""
    work = work_of(trace)
    if not trace.on_gpu or not len(trace.calls):
        return inside(work.start, marked)
    order = np.argsort(trace.calls.correlation, kind="stable")
    known = trace.calls.correlation[order]
    place = np.minimum(np.searchsorted(known, work.correlation), len(known) - 1)
    launched = (known[place] == work.correlation) & (work.correlation != NO_KEY)
    if not launched.any():
        return inside(work.start, marked)
    return np.where(launched, inside(trace.calls.start[order][place], marked), NO_KEY)


def inside(moments: Floats, marked: Spans) -> Integers:
    """Return for each moment the place of the span that it is in; NO_KEY where it is in none. Spans do not overlap."""
    place = np.searchsorted(marked.start, moments, side="right") - 1
    inside = (place >= 0) & (moments < marked.end[np.maximum(place, 0)])
    return np.where(inside, place, NO_KEY).astype(np.int64)
