"""What a traced run says of its pipeline: when each pass ran, how long passes take, how much of a step was idle.

The trainer marks each pass in torch's profiler by `mark`. A trace is the JSON that the profiler writes of one rank. On
a GPU a pass lasts from the first to the last kernel that was launched within its mark.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.spec.config import ParallelConfig
from train.spec.pipeline_schedule.observed import Observed, observe
from train.spec.pipeline_schedule.orders import Kind, Pass
from train.spec.pipeline_schedule.simulation import Timed, Timeline

PREFIX = "pipeline "
_MARK, _LAUNCHES, _ON_GPU = "user_annotation", ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")
_MESSAGE = "nccl"
"""Begins the names of kernels that carry messages, whose waiting is no part of a pass."""


def mark(stage: int, kind: Kind, micro_batch: int) -> str:
    """Return the name under which a pass is found in a trace."""
    return f"{PREFIX}{Pass(stage, kind, micro_batch)}"


@dataclass(frozen=True)
class Measured:
    """The steps of a traced pipeline [ms], each beginning at 0 with its first pass.

    observed: what passes and messages took in every other step. held_out: the steps between them, so that what is
    simulated with those times is a prediction. A trace of one step has it in both.
    """

    held_out: tuple[Timeline, ...]
    observed: Observed

    @property
    def idle_share(self) -> float:
        """The share of all ranks' time in which they run no pass, in the median step that is held out."""
        return statistics.median(step.idle_share for step in self.held_out)

    @property
    def step_ms(self) -> float:
        """The time from a step's first pass to its last, in the median step that is held out [ms]."""
        return statistics.median(step.step for step in self.held_out)


def read(traces: Sequence[Mapping[str, Any]], layout: ParallelConfig) -> Measured:
    """Return what the traces of all ranks of one pipeline say, in the order of the ranks; clocks are those of one host.

    Raises ValueError for traces that hold no marks, or not those of all passes.
    """
    ranks = [_passes(rank, trace) for rank, trace in enumerate(traces)]
    counts = {len(spans) for rank in ranks for spans in rank.values()}
    if not all(ranks) or len(counts) != 1:
        raise ValueError(
            "the traces do not hold the same steps of every pass: they are cut off, or of a run without a pipeline; "
            "record them with profile.ranks=all"
        )
    steps = tuple(_step([{one: spans[i] for one, spans in rank.items()} for rank in ranks]) for i in range(*counts))
    return Measured(steps[1::2] or steps, observe(steps[::2], layout))


def _passes(rank: int, trace: Mapping[str, Any]) -> dict[Pass, list[Timed]]:
    """Return the times of every pass of a rank [ms], one after the other, by its clock: on its GPU where it has one."""
    base = float(trace.get("baseTimeNanoseconds", 0)) / 1e6
    events = [event for event in trace.get("traceEvents", ()) if "dur" in event]
    marks = [e for e in events if e.get("cat") == _MARK and str(e.get("name", "")).startswith(PREFIX)]
    marks.sort(key=lambda event: float(event["ts"]))
    spans = [(float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in marks]
    if any(event.get("cat") in _ON_GPU for event in events):
        spans = _on_gpu(spans, events)
    found: dict[Pass, list[Timed]] = {}
    for event, (start, end) in zip(marks, spans, strict=True):
        if start < end:
            one = _named(event["name"])
            found.setdefault(one, []).append(Timed(rank, one, base + start / 1e3, base + end / 1e3))
    return found


def _on_gpu(spans: Sequence[tuple[float, float]], events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return when a GPU ran what was launched within each span of the CPU's time; of nothing, an empty span.

    The profiler's own spans on the GPU lack the backward pass, whose kernels are launched by a thread of autograd.
    """
    launched = {e["args"]["correlation"]: float(e["ts"]) for e in events if e.get("cat") in _LAUNCHES}
    starts = [start for start, _ in spans]
    found = [(float("inf"), 0.0)] * len(spans)
    for event in events:
        if event.get("cat") not in _ON_GPU or str(event["name"]).startswith(_MESSAGE):
            continue
        at = launched.get(event["args"].get("correlation"), -1.0)
        place = bisect_right(starts, at) - 1
        if place >= 0 and at <= spans[place][1]:
            begin, end = found[place]
            ts = float(event["ts"])
            found[place] = (min(begin, ts), max(end, ts + float(event["dur"])))
    return found


def _named(name: str) -> Pass:
    said = name.removeprefix(PREFIX)
    letter = next(i for i, c in enumerate(said) if c.isalpha())
    return Pass(int(said[:letter]), Kind(said[letter]), int(said[letter + 1 :]))


def _step(ranks: Sequence[Mapping[Pass, Timed]]) -> Timeline:
    begin = min(one.start for rank in ranks for one in rank.values())
    return Timeline(
        tuple(
            tuple(
                Timed(one.rank, one.one, one.start - begin, one.end - begin)
                for one in sorted(rank.values(), key=lambda one: one.start)
            )
            for rank in ranks
        )
    )
