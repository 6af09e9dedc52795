"""What passes, messages and the time between passes took in steps that ran: their medians, and draws of whole steps.

A pipeline waits for its slowest rank at every turn, so passes that vary leave it more idle than passes that all take
their median. Times of one step are alike, as a rank is slow for a while: so all that a rank does in a step is drawn at
once. That two ranks of one step may be slow together, draws do not keep.
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
class RankStep:
    """A step of one rank: times of its passes, of messages for which it was free already, and between passes [ms]."""

    passes: Mapping[Pass, float]
    messages: tuple[float, ...] = ()
    between: tuple[float, ...] = ()


@dataclass(frozen=True)
class Observed:
    """The steps of each rank, in the order of the ranks."""

    ranks: tuple[tuple[RankStep, ...], ...]

    def usual(self, layout: ParallelConfig) -> Times:
        """Return the medians."""
        every = [step for rank in self.ranks for step in rank]
        passes: dict[tuple[int, Kind], list[float]] = {}
        for step in every:
            for one, took in step.passes.items():
                passes.setdefault((one.stage, one.kind), []).append(took)
        usual = {key: statistics.median(values) for key, values in passes.items()}

        def of(kind: Kind, half: bool = False) -> tuple[float, ...]:
            stages = range(layout.pp * stages_per_rank(layout))
            return tuple(usual[s, kind] if (s, kind) in usual else usual[s, Kind.BACKWARD] * half / 2 for s in stages)

        forward, inputs, weights = of(Kind.FORWARD), of(Kind.INPUT, half=True), of(Kind.WEIGHT, half=True)
        return Times(forward, inputs, weights, statistics.median(_messages(every)), statistics.median(_between(every)))

    def drawn(self, draw: random.Random) -> DrawnTimes:
        """Return the times of a step that is put together of one step of each rank, drawn from these."""
        every = [step for rank in self.ranks for step in rank]
        steps = [draw.choice(rank) for rank in self.ranks]
        passes = {one: took for step in steps for one, took in step.passes.items()}
        return DrawnTimes(passes, _messages(steps, every), _between(steps, every), draw)


def _messages(*choices: Sequence[RankStep]) -> tuple[float, ...]:
    """Return the times of messages in the first of these steps that have any."""
    return next((found for steps in choices if (found := tuple(t for s in steps for t in s.messages))), (0.0,))


def _between(*choices: Sequence[RankStep]) -> tuple[float, ...]:
    """Return the times between passes in the first of these steps that have any."""
    return next((found for steps in choices if (found := tuple(t for s in steps for t in s.between))), (0.0,))


@dataclass(frozen=True)
class DrawnTimes:
    """Times of one step: of each pass as it was, of messages and between passes each drawn from these."""

    passes: Mapping[Pass, float]
    messages: tuple[float, ...]
    between: tuple[float, ...]
    draw: random.Random

    def of(self, one: Pass) -> float:
        """Return how long a pass took."""
        return self.passes[one]

    def to_other_rank(self) -> float:
        """Return how long a message took once."""
        return self.draw.choice(self.messages)

    def to_next_pass(self) -> float:
        """Return how long a rank once took between two passes."""
        return self.draw.choice(self.between)


def observe(steps: Sequence[Timeline], layout: ParallelConfig) -> Observed:
    """Return the times of some steps of a pipeline."""
    by_step = [_rank_steps(step, layout) for step in steps]
    return Observed(tuple(zip(*by_step, strict=True)))


def _rank_steps(step: Timeline, layout: ParallelConfig) -> list[RankStep]:
    found, waits = [], list(_waits(step, layout))
    for number, rank in enumerate(step.ranks):
        messages, between = (
            tuple(max(0.0, wait.took) for wait in waits if wait.rank == number and wait.message is which)
            for which in (True, False)
        )
        found.append(RankStep({timed.one: timed.end - timed.start for timed in rank}, messages, between))
    return found


@dataclass(frozen=True)
class _Wait:
    """How long a rank stood before a pass: for a message that was sent when it was free, or with all that it needed."""

    rank: int
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
                yield _Wait(timed.rank, False, timed.start - free)
            elif source is not None and source.end >= free:
                yield _Wait(timed.rank, True, timed.start - source.end)
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
