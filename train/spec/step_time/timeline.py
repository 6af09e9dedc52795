"""How long a pipeline's ranks stand idle in a step: by simulating its schedule, or its closed form where that is long.

Passes of one kind take the same time on every micro-batch, messages the time of one stream from rank to rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import SCHEDULES, stages_of, stages_per_rank
from train.spec.pipeline_schedule.closed_forms import closed_step
from train.spec.pipeline_schedule.simulation import Timeline, Times, simulate

SIMULATED = 256
"""Passes of a step up to which its schedule is simulated, in about 1 ms; beyond, stages count as all alike."""


@dataclass(frozen=True)
class Busy:
    """A pipeline's pass: how long it takes, how long each rank computes [s]."""

    step: float
    ranks: tuple[float, ...]


@dataclass(frozen=True)
class Pipeline:
    """What a pipeline's schedule runs: `passes` times in a step, `count` micro-batches each.

    forward, backward: of each stage, in the model's order, with what messages within layers add [s]. message: from a
    rank to the next [s].
    """

    layout: ParallelConfig
    count: int
    passes: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    message: float

    @property
    def bubble(self) -> float:
        """The seconds of a step in which the busiest rank has nothing to do."""
        busy = run(self.layout, self.count, self.forward, self.backward, self.message)
        return self.passes * max(0.0, busy.step - max(busy.ranks))

    def timeline(self) -> Timeline:
        """Return when each rank runs which micro-batch, by simulation [s]; half of a backward pass is for weights."""
        half = tuple(time / 2 for time in self.backward)
        return simulate(self.layout, self.count, Times(self.forward, half, half, self.message))


@lru_cache(maxsize=4096)
def run(
    layout: ParallelConfig, count: int, forward: tuple[float, ...], backward: tuple[float, ...], message: float = 0.0
) -> Busy:
    """Return a pass of `count` micro-batches through stages that take so long each [s].

    message: from a rank to the next. Half of a backward pass is for gradients of weights, where a schedule splits it.
    """
    ranks = tuple(
        count * sum(forward[stage] + backward[stage] for stage in stages_of(layout, rank)) for rank in range(layout.pp)
    )
    half = tuple(time / 2 for time in backward)
    if 2 * count * len(forward) > SIMULATED and (closed := _closed(layout, count, forward, backward, message)):
        return Busy(max(closed, *ranks), ranks)
    return Busy(simulate(layout, count, Times(forward, half, half, message)).step, ranks)


def _closed(
    layout: ParallelConfig, count: int, forward: tuple[float, ...], backward: tuple[float, ...], message: float
) -> float | None:
    """Return the step if every rank were as the busiest one; None where there is no closed form.

    As many messages as there are ranks' borders are waited for on the way there and back, while the pipeline fills.
    """
    busiest = max(range(layout.pp), key=lambda rank: sum(forward[s] + backward[s] for s in stages_of(layout, rank)))
    stages = stages_of(layout, busiest)
    there, back = sum(forward[s] for s in stages), sum(backward[s] for s in stages)
    if layout.pp_schedule == "zbv":  # its closed form is for parts of one length
        there, back = (there + back) / 3, 2 * ((there + back) / 3)
    whole = closed_step(layout, count, there, back)
    if whole is None:
        return None
    turns = stages_per_rank(layout) if SCHEDULES[layout.pp_schedule].stages != 1 else 1
    return whole + 2 * message * (layout.pp - 1) * turns
