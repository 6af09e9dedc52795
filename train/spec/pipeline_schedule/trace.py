"""What a traced run says of its pipeline: when each pass ran, how long passes take, how much of a step was idle.

The trainer marks each pass in torch's profiler by `mark`. A trace is the JSON that the profiler writes of one rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import rank_of, stages_per_rank
from train.spec.pipeline_schedule.orders import Kind, Pass
from train.spec.pipeline_schedule.simulation import Timed, Timeline, Times

PREFIX = "pipeline "
CATEGORIES = ("gpu_user_annotation", "user_annotation")
"""Where marks are: as the GPU ran them, else as the CPU did."""


def mark(stage: int, kind: Kind, micro_batch: int) -> str:
    """Return the name under which a pass is found in a trace."""
    return f"{PREFIX}{Pass(stage, kind, micro_batch)}"


@dataclass(frozen=True)
class Measured:
    """The steps of a traced pipeline [ms], each beginning at 0 with its first pass, and the times of its passes.

    quietest: the shortest step, least held up by whatever else runs there. times: medians of all other steps, so that
    what is simulated with them is a prediction of the quietest.
    """

    steps: tuple[Timeline, ...]
    times: Times

    @property
    def quietest(self) -> Timeline:
        """The shortest step."""
        return _quietest(self.steps)

    @property
    def idle_share(self) -> float:
        """The median step's share of all ranks' time in which they run no pass."""
        return statistics.median(step.idle_share for step in self.steps)

    @property
    def step_ms(self) -> float:
        """The median time from a step's first pass to its last [ms]."""
        return statistics.median(step.step for step in self.steps)


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
    others = tuple(step for step in steps if step is not _quietest(steps))
    return Measured(steps, _times(others or steps, layout))


def _quietest(steps: Sequence[Timeline]) -> Timeline:
    return min(steps, key=lambda step: step.step)


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


def _times(steps: Sequence[Timeline], layout: ParallelConfig) -> Times:
    """Return the median time of each stage's passes, of a message to a rank that waits for it, and between passes."""
    taken: dict[tuple[int, Kind], list[float]] = {}
    for step in steps:
        for timed in (one for rank in step.ranks for one in rank):
            taken.setdefault((timed.one.stage, timed.one.kind), []).append(timed.end - timed.start)
    usual = {key: statistics.median(values) for key, values in taken.items()}

    def of(kind: Kind, half: bool = False) -> tuple[float, ...]:
        stages = range(layout.pp * stages_per_rank(layout))
        return tuple(usual[s, kind] if (s, kind) in usual else usual[s, Kind.BACKWARD] * half / 2 for s in stages)

    waited = [wait for step in steps for wait in _waits(step, layout)]
    messages, between = ([wait.seconds for wait in waited if wait.message is which] for which in (True, False))
    return Times(
        of(Kind.FORWARD), of(Kind.INPUT, half=True), of(Kind.WEIGHT, half=True), _usual(messages), _usual(between)
    )


def _usual(values: Sequence[float]) -> float:
    return max(0.0, statistics.median(values)) if values else 0.0


@dataclass(frozen=True)
class _Wait:
    """How long a rank stood before a pass: for a message that was sent when it was free, or with all that it needed."""

    message: bool
    seconds: float


def _waits(step: Timeline, layout: ParallelConfig) -> Iterator[_Wait]:
    """Yield the waits of a step whose cause is sure: passes for which the rank and a message were late are left out."""
    every = {timed.one: timed for rank in step.ranks for timed in rank}
    for rank in step.ranks:
        free = 0.0
        for place, timed in enumerate(rank):
            source = _source(timed, every, layout)
            if source is None and place:
                yield _Wait(False, timed.start - free)
            elif source is not None and source.end >= free:
                yield _Wait(True, timed.start - source.end)
            free = timed.end


def _source(timed: Timed, every: Mapping[Pass, Timed], layout: ParallelConfig) -> Timed | None:
    """Return the pass of another rank whose result a pass needs; None where there is none."""
    one = timed.one
    if one.kind is Kind.WEIGHT:
        return None
    stage = one.stage + (-1 if one.kind is Kind.FORWARD else 1)
    if not 0 <= stage < layout.pp * stages_per_rank(layout) or rank_of(layout, stage) == timed.rank:
        return None
    kinds = (Kind.FORWARD,) if one.kind is Kind.FORWARD else (Kind.BACKWARD, Kind.INPUT)
    return next(
        every[Pass(stage, kind, one.micro_batch)] for kind in kinds if Pass(stage, kind, one.micro_batch) in every
    )
