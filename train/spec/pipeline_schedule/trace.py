"""What a traced run says of its pipeline: when each pass ran, how long passes take, how much of a step was idle.

The trainer marks each pass in torch's profiler by `mark`. A trace is the JSON that the profiler writes of one rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.spec.config import ParallelConfig
from train.spec.pipeline_schedule.observed import Observed, observe
from train.spec.pipeline_schedule.orders import Kind, Pass
from train.spec.pipeline_schedule.simulation import Timed, Timeline

PREFIX = "pipeline "
CATEGORIES = ("gpu_user_annotation", "user_annotation")
"""Where marks are: as the GPU ran them, else as the CPU did."""


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
    """Return the times of every pass of a rank [ms], one after the other, by its clock."""
    base = float(trace.get("baseTimeNanoseconds", 0)) / 1e6
    events = [e for e in trace.get("traceEvents", ()) if str(e.get("name", "")).startswith(PREFIX) and "dur" in e]
    category = next((name for name in CATEGORIES if any(e.get("cat") == name for e in events)), None)
    found: dict[Pass, list[Timed]] = {}
    for event in sorted(events, key=lambda e: float(e["ts"])):
        if event.get("cat") == category:
            one, start = _named(event["name"]), base + float(event["ts"]) / 1e3
            found.setdefault(one, []).append(Timed(rank, one, start, start + float(event["dur"]) / 1e3))
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
