"""The messages of a step in traces: how many, how long nothing else goes on meanwhile, how much is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from study.diagnosis.intervals import clip, difference, overlap
from study.diagnosis.of_traces import diagnose
from study.diagnosis.shares import spent
from study.diagnosis.trace import NO_KEY, Trace
from study.diagnosis.windows import Window, inside, steps_of_host, window_of

CALLS = ("c10d::allreduce_", "c10d::_allgather_base_", "c10d::allgather_", "c10d::_reduce_scatter_base_")
"""What torch.distributed calls the messages of data-parallel ranks."""
GLOO = "gloo:"
"""Names of a message that is under way over gloo, in threads of its own, begin so."""


@dataclass(frozen=True)
class Communication:
    """A step's communication, the mean of ranks. exposed [s]: nothing is calculated meanwhile; with waiting for others.

    overlap: share of the time of messages that has computation beside it; None without messages. messages: handed over.
    """

    seconds_step: float
    exposed: float
    overlap: float | None
    messages: float


def communication(traces: Sequence[Trace]) -> Communication:
    """Return what the traces of all ranks say of their messages."""
    windows = [window_of(trace) for trace in traces]
    messages = float(np.mean([_called(trace) for trace in traces]))
    if traces[0].on_gpu:
        found = diagnose(traces, top=1)
        share = found.shares["communication"] + found.shares.get("waiting", 0.0)
        return Communication(found.seconds_step, share * found.seconds_step, found.overlap, messages)
    each = [_over_gloo(*one) for one in zip(traces, windows, strict=True)]
    known = [hidden for _, hidden in each if hidden is not None]
    return Communication(
        seconds_step=float(np.mean([window.length / window.steps for window in windows])) / 1e6,
        exposed=float(np.mean([alone for alone, _ in each])),
        overlap=float(np.mean(known)) if known else None,
        messages=messages,
    )


def _over_gloo(trace: Trace, window: Window) -> tuple[float, float | None]:
    """Return the seconds of a step in which messages go and nothing is calculated, and the hidden share of them.

    Operations only say when a message was handed over: DDP then waits outside of any.
    """
    under_way = [place for place, name in enumerate(trace.names) if name.startswith(GLOO)]
    talk = clip(trace.marks.covered(trace.named(trace.marks, under_way)), window.start, window.end)
    computing = spent(trace, window).computing
    return difference(talk, computing).length / window.steps / 1e6, overlap(talk, computing)


def _called(trace: Trace) -> float:
    """Return how many messages of a step a rank handed over, by the steps that the host marked.

    Not by the window of the GPU's work: the host is ahead of it, so that the messages of the window's first step were
    in part handed over before it begins.
    """
    marked = steps_of_host(trace)
    steps = np.unique(inside(trace.operations.start, marked))
    names = [place for place, name in enumerate(trace.names) if name in CALLS]
    calls = inside(trace.operations.start[trace.named(trace.operations, names)], marked)
    return int((calls != NO_KEY).sum()) / max(1, int((steps != NO_KEY).sum()))
