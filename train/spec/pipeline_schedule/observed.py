"""What passes, messages and the time between passes took in steps that ran: their medians, and draws of whole steps.

A pipeline waits for its slowest rank at every turn, so passes that vary leave it more idle than passes that all take
their median. Times of one step are alike, as a rank is slow for a while: so all that a rank does in a step is drawn at
once. That two ranks of one step may be slow together, draws do not keep.

Before a pass a rank stands for one of three reasons, each with times of its own. Its message is sent when the rank is
free already. Or it was sent before, and the rank has to receive it: torch's gpipe and 1f1b ask for a message only when
they need it, and gloo sends none before it is asked for, by threads that share the ranks' cores. Or nothing is to come
from another rank.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import rank_of, stages_per_rank
from train.spec.pipeline_schedule.orders import Kind, Pass
from train.spec.pipeline_schedule.simulation import Timed, Timeline, Times


@dataclass(frozen=True)
class Gaps:
    """What a rank took before its passes [ms], from when it was free and the message sent, whichever came later.

    messages: of passes for whose message it was free already. received: of those whose message had been sent before.
    between: of passes without a message.
    """

    messages: tuple[float, ...] = ()
    received: tuple[float, ...] = ()
    between: tuple[float, ...] = ()


@dataclass(frozen=True)
class RankStep:
    """A step of one rank: how long its passes took [ms], and what came before them."""

    passes: Mapping[Pass, float]
    gaps: Gaps = Gaps()


@dataclass(frozen=True)
class Observed:
    """The steps of each rank, in the order of the ranks."""

    ranks: tuple[tuple[RankStep, ...], ...]

    def usual(self, layout: ParallelConfig) -> Times:
        """Return the medians."""
        every = self._every
        passes: dict[tuple[int, Kind], list[float]] = {}
        for step in every:
            for one, took in step.passes.items():
                passes.setdefault((one.stage, one.kind), []).append(took)
        usual = {key: statistics.median(values) for key, values in passes.items()}

        def of(kind: Kind, half: bool = False) -> tuple[float, ...]:
            stages = range(layout.pp * stages_per_rank(layout))
            return tuple(usual[s, kind] if (s, kind) in usual else usual[s, Kind.BACKWARD] * half / 2 for s in stages)

        gaps = _gaps(every)
        between, received = statistics.median(gaps.between), statistics.median(gaps.received)
        return Times(
            of(Kind.FORWARD),
            of(Kind.INPUT, half=True),
            of(Kind.WEIGHT, half=True),
            message=statistics.median(gaps.messages),
            between=between,
            receive=max(0.0, received - between),
        )

    def drawn(self, draw: random.Random) -> DrawnTimes:
        """Return the times of a step that is put together of one step of each rank, drawn from these."""
        every = self._every
        steps = [draw.choice(rank) for rank in self.ranks]
        passes = {one: took for step in steps for one, took in step.passes.items()}
        gaps = tuple(_gaps([step], rank, every) for step, rank in zip(steps, self.ranks, strict=True))
        return DrawnTimes(passes, gaps, draw)

    @property
    def _every(self) -> list[RankStep]:
        return [step for rank in self.ranks for step in rank]


def _gaps(*choices: Sequence[RankStep]) -> Gaps:
    """Return gaps, each kind of the first of these steps that have any. Without any, receiving takes no longer."""

    def first(of: Callable[[Gaps], tuple[float, ...]]) -> tuple[float, ...]:
        return next((found for steps in choices if (found := tuple(t for step in steps for t in of(step.gaps)))), ())

    between = first(lambda gaps: gaps.between) or (0.0,)
    return Gaps(first(lambda gaps: gaps.messages) or (0.0,), first(lambda gaps: gaps.received) or between, between)


@dataclass(frozen=True)
class DrawnTimes:
    """Times of one step: of each pass as it was, of messages and between passes each drawn from a rank's."""

    passes: Mapping[Pass, float]
    gaps: tuple[Gaps, ...]
    draw: random.Random

    def of(self, one: Pass) -> float:
        """Return how long a pass took."""
        return self.passes[one]

    def to_other_rank(self, rank: int) -> float:
        """Return how long a message to this rank took once."""
        return self.draw.choice(self.gaps[rank].messages)

    def to_next_pass(self, rank: int, received: bool) -> float:
        """Return how long a rank once took between two passes, receiving what was sent before or nothing."""
        gaps = self.gaps[rank]
        return self.draw.choice(gaps.received if received else gaps.between)


def observe(steps: Sequence[Timeline], layout: ParallelConfig) -> Observed:
    """Return the times of some steps of a pipeline."""
    by_step = [_rank_steps(step, layout) for step in steps]
    return Observed(tuple(zip(*by_step, strict=True)))


def _rank_steps(step: Timeline, layout: ParallelConfig) -> list[RankStep]:
    every = {timed.one: timed for rank in step.ranks for timed in rank}
    return [
        RankStep({timed.one: timed.end - timed.start for timed in rank}, _before(rank, every, layout))
        for rank in step.ranks
    ]


def _before(rank: Sequence[Timed], every: Mapping[Pass, Timed], layout: ParallelConfig) -> Gaps:
    """Return what a rank took before its passes."""
    messages: list[float] = []
    received: list[float] = []
    between: list[float] = []
    free = 0.0
    for place, timed in enumerate(rank):
        source = _source(timed, every, layout)
        if source is not None and source.end >= free:
            messages.append(max(0.0, timed.start - source.end))
        elif source is not None:
            received.append(max(0.0, timed.start - free))
        elif place:
            between.append(max(0.0, timed.start - free))
        free = timed.end
    return Gaps(tuple(messages), tuple(received), tuple(between))


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
