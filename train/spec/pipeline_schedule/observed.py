"""What passes, messages and the time between passes took in steps that ran: their medians, and draws of them.

A pipeline waits for its slowest rank at every turn, so passes that vary leave it more idle than passes that all take
their median. Draws keep how much each time varies; that the times of one step are alike, they do not.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import rank_of, stages_per_rank
from train.spec.pipeline_schedule.orders import Kind, Pass
from train.spec.pipeline_schedule.simulation import Timed, Timeline, Times


@dataclass(frozen=True)
class Observed:
    """Times of every pass by stage and kind, of messages to a rank that waited for one, and between passes [ms]."""

    passes: Mapping[tuple[int, Kind], tuple[float, ...]]
    messages: tuple[float, ...]
    between: tuple[float, ...]

    def usual(self, layout: ParallelConfig) -> Times:
        """Return the medians."""
        usual = {key: statistics.median(values) for key, values in self.passes.items()}

        def of(kind: Kind, half: bool = False) -> tuple[float, ...]:
            stages = range(layout.pp * stages_per_rank(layout))
            return tuple(usual[s, kind] if (s, kind) in usual else usual[s, Kind.BACKWARD] * half / 2 for s in stages)

        forward, inputs, weights = of(Kind.FORWARD), of(Kind.INPUT, half=True), of(Kind.WEIGHT, half=True)
        return Times(forward, inputs, weights, statistics.median(self.messages), statistics.median(self.between))

    def drawn(self, draw: random.Random) -> DrawnTimes:
        """Return times that are drawn from these, each time that one is asked for."""
        return DrawnTimes(self, draw)


@dataclass(frozen=True)
class DrawnTimes:
    """Times of passes and messages, each drawn from those observed."""

    observed: Observed
    draw: random.Random

    def of(self, one: Pass) -> float:
        """Return how long a pass of that stage and kind took once."""
        return self.draw.choice(self.observed.passes[one.stage, one.kind])

    def to_other_rank(self) -> float:
        """Return how long a message took once."""
        return self.draw.choice(self.observed.messages)

    def to_next_pass(self) -> float:
        """Return how long a rank once took between two passes."""
        return self.draw.choice(self.observed.between)


def observe(steps: Sequence[Timeline], layout: ParallelConfig) -> Observed:
    """Return the times of some steps of a pipeline."""
    passes: dict[tuple[int, Kind], list[float]] = {}
    for step in steps:
        for timed in (one for rank in step.ranks for one in rank):
            passes.setdefault((timed.one.stage, timed.one.kind), []).append(timed.end - timed.start)
    waits = [wait for step in steps for wait in _waits(step, layout)]
    messages, between = (
        tuple(max(0.0, wait.took) for wait in waits if wait.message is which) or (0.0,) for which in (True, False)
    )
    return Observed({key: tuple(values) for key, values in passes.items()}, messages, between)


@dataclass(frozen=True)
class _Wait:
    """How long a rank stood before a pass: for a message that was sent when it was free, or with all that it needed."""

    message: bool
    took: float


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
