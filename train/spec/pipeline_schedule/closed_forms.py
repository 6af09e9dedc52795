"""What is known of a pipeline's step without simulating it: closed forms of idle time, and a lower bound.

Closed forms are for stages that are all alike and messages that take no time.
"""

from __future__ import annotations

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import SCHEDULES, rank_of, stages_of, stages_per_rank
from train.spec.pipeline_schedule.simulation import Times


def plain_idle_share(pp: int, count: int) -> float:
    """Return (p - 1) / (m + p - 1), the idle share of gpipe and 1f1b, for `count` micro-batches."""
    return (pp - 1) / (count + pp - 1)


def closed_step(
    layout: ParallelConfig, count: int, forward: float, backward: float, weight: float | None = None
) -> float | None:
    """Return how long a step takes by a closed form; None where there is none.

    Times are of one micro-batch through all stages of a rank, as in `simulation.even_times`. Sources: Huang et al. 2019
    (gpipe), Narayanan et al. 2021 (1f1b, interleaved), Qi et al. 2024 (zb1p, zbv). With zb1p each rank before the last
    adds forward + gradients of inputs - gradients of weights, but never less than the longer of the first two.
    """
    pp, stages = layout.pp, stages_per_rank(layout)
    part = backward / 2 if weight is None else weight
    fills = {"gpipe": 1, "zbv": 2 * pp - 1}.get(layout.pp_schedule, pp)
    if count < fills:
        return None
    idle = {
        "gpipe": forward + backward,
        "1f1b": forward + backward,
        "interleaved": forward + backward,
        "zb1p": max(forward, backward - part, forward + backward - 2 * part),
        "zbv": forward if forward == part == backward - part else None,
    }[layout.pp_schedule]
    return None if idle is None else count * (forward + backward) + (pp - 1) * idle / stages


def least_step(layout: ParallelConfig, count: int, times: Times) -> float:
    """Return a time below which no order of passes ends a step of `count` micro-batches.

    For each rank: until the first micro-batch is there, its own passes, and the way back of the last gradient that it
    sends. And for one micro-batch: all its passes one after the other.
    """
    splits = SCHEDULES[layout.pp_schedule].splits
    found = [
        _first_arrival(layout, rank, times)
        + count * _work(layout, rank, times)
        + _way_back(layout, rank, times, splits)
        for rank in range(layout.pp)
    ]
    stages = layout.pp * stages_per_rank(layout)
    hops = 2 * sum(_crosses(layout, stage) for stage in range(1, stages))
    through = sum(times.forward) + sum(times.backward_input) + hops * times.message
    return max(*found, through + (times.backward_weight[0] if splits else sum(times.backward_weight)))


def _work(layout: ParallelConfig, rank: int, times: Times) -> float:
    """Return how long one micro-batch's passes take on a rank."""
    return sum(
        times.forward[stage] + times.backward_input[stage] + times.backward_weight[stage]
        for stage in stages_of(layout, rank)
    )


def _first_arrival(layout: ParallelConfig, rank: int, times: Times) -> float:
    """Return the earliest time at which a rank can begin: after the forward passes of the stages before its first."""
    first = stages_of(layout, rank)[0]
    return sum(times.forward[:first]) + times.message * sum(_crosses(layout, s) for s in range(1, first + 1))


def _way_back(layout: ParallelConfig, rank: int, times: Times, splits: bool) -> float:
    """Return the least time from a rank's last pass to the end of the step.

    Gradients of weights may come last, and nothing waits for them. Else it is a backward pass, of the rank's first
    stage at best, after which the stages before it run theirs.
    """
    if splits:
        return 0.0
    first = stages_of(layout, rank)[0]
    back = sum(times.backward_input[:first]) + sum(times.backward_weight[:first])
    return back + times.message * sum(_crosses(layout, s) for s in range(1, first + 1))


def _crosses(layout: ParallelConfig, stage: int) -> bool:
    """Say whether a stage's input comes from another rank."""
    return rank_of(layout, stage - 1) != rank_of(layout, stage)
