"""When each pass of a pipeline runs: a discrete-event simulation of a schedule, from the times of passes and messages.

A rank runs its passes in the schedule's order, one at a time, each as soon as what it needs is there: a forward pass
the output of the stage before, a backward pass the gradient of the stage after. Messages do not wait for each other.
They cost no time of the sender, except where 1f1b waits for them (`_sender_waits`). Receiving one takes time of the
receiver also where it was sent long before: `PassTimes.to_next_pass` says how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import rank_of, stages_per_rank
from train.spec.pipeline_schedule.orders import Kind, Order, Pass, in_flight, orders


class PassTimes(Protocol):
    """What a simulation asks for, each time anew."""

    def of(self, one: Pass) -> float:
        """Return how long a pass takes."""
        ...

    def to_other_rank(self, rank: int) -> float:
        """Return how long a message takes to this rank from another."""
        ...

    def to_next_pass(self, rank: int, received: bool) -> float:
        """Return what a rank needs from the end of a pass to the beginning of its next one, if that has its input.

        received: that comes from another rank, and was sent before.
        """
        ...


@dataclass(frozen=True)
class Times:
    """How long one micro-batch takes through each stage, in the model's order, and from a rank to another. Any unit.

    A whole backward pass takes as long as the gradients of inputs and those of weights together. between: what a rank
    needs from the end of a pass to the beginning of its next one, if that has its input. receive: what it needs beyond
    that where the input comes from another rank, which sent it before.
    """

    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    message: float = 0.0
    between: float = 0.0
    receive: float = 0.0

    def of(self, one: Pass) -> float:
        """Return how long a pass takes."""
        stage = one.stage
        if one.kind is Kind.FORWARD:
            return self.forward[stage]
        if one.kind is Kind.INPUT:
            return self.backward_input[stage]
        if one.kind is Kind.WEIGHT:
            return self.backward_weight[stage]
        return self.backward_input[stage] + self.backward_weight[stage]

    def to_other_rank(self, rank: int) -> float:
        """Return `message`."""
        return self.message

    def to_next_pass(self, rank: int, received: bool) -> float:
        """Return `between`, with `receive` where a message is received."""
        return self.between + self.receive * received


def even_times(
    layout: ParallelConfig, forward: float, backward: float, weight: float | None = None, message: float = 0.0
) -> Times:
    """Return the times of stages that are all alike, from those of one micro-batch through all stages of a rank.

    `weight`: the part of `backward` that is for gradients of weights; None: half of it. Raises ValueError for times
    that cannot be.
    """
    part = backward / 2 if weight is None else weight
    for name, value in (("forward", forward), ("backward", backward)):
        if not value > 0:
            raise ValueError(f"{name}={value:g} is not allowed: the time of a pass is above 0")
    if not 0 <= part <= backward:
        raise ValueError(f"weight={part:g} is not allowed: from 0 to backward={backward:g}, of which it is a part")
    if not message >= 0:
        raise ValueError(f"message={message:g} is not allowed: at least 0")
    each, stages = stages_per_rank(layout), layout.pp * stages_per_rank(layout)
    return Times(
        forward=(forward / each,) * stages,
        backward_input=((backward - part) / each,) * stages,
        backward_weight=(part / each,) * stages,
        message=message,
    )


@dataclass(frozen=True)
class Timed:
    """A pass with the times at which it begins and ends, and the rank that runs it."""

    rank: int
    one: Pass
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """All passes of one step, by rank in the order in which they run. The first pass begins at 0."""

    ranks: tuple[tuple[Timed, ...], ...]

    @cached_property
    def step(self) -> float:
        """How long the step takes: until the last pass of any rank ends."""
        return max(timed[-1].end for timed in self.ranks)

    @cached_property
    def idle(self) -> tuple[float, ...]:
        """Each rank's share of the step in which it runs no pass."""
        return tuple(1 - sum(one.end - one.start for one in timed) / self.step for timed in self.ranks)

    @property
    def idle_share(self) -> float:
        """The share of all ranks' time in which they run no pass."""
        return sum(self.idle) / len(self.idle)


def simulate(layout: ParallelConfig, count: int, times: PassTimes) -> Timeline:
    """Return when every pass of `count` micro-batches runs. Raises ValueError for a number that cannot be taken."""
    return _Simulation(layout, orders(layout, count), times).run()


def waiting(layout: ParallelConfig, count: int) -> float:
    """Return how many micro-batches, through all layers of a rank, at most wait there for their last gradient.

    That is on the rank where most do: what a rank keeps of a micro-batch counts until the gradients of weights are
    there. Raises ValueError for a number of micro-batches that the schedule cannot take.
    """
    return max(in_flight(order) for order in orders(layout, count)) / stages_per_rank(layout)


@dataclass(frozen=True)
class _Input:
    """What a pass needs from another one: when that ends, when its result is here, whether another rank runs it."""

    end: float
    here: float
    other_rank: bool


_OWN = _Input(0.0, 0.0, other_rank=False)


class _Simulation:
    def __init__(self, layout: ParallelConfig, order: Sequence[Order], times: PassTimes) -> None:
        self._layout, self._orders, self._times = layout, order, times
        self._last = layout.pp * stages_per_rank(layout) - 1
        self._inputs: dict[tuple[int, bool, int], _Input] = {}  # by stage, forward, number
        self._sent = [0.0] * layout.pp  # until when a rank waits for what it has sent
        self._done: list[list[Timed]] = [[] for _ in range(layout.pp)]

    def run(self) -> Timeline:
        """Run ranks in turn, each as far as it comes."""
        waiting = set(range(self._layout.pp))
        while waiting:
            moved = [rank for rank in sorted(waiting) if self._advance(rank)]
            assert moved, "ranks wait for each other for ever"
            waiting = {rank for rank in waiting if len(self._done[rank]) < len(self._orders[rank])}
        return Timeline(tuple(map(tuple, self._done)))

    def _advance(self, rank: int) -> bool:
        """Run a rank's passes until one needs what is not there yet; say whether any ran."""
        order, done = self._orders[rank], self._done[rank]
        before = len(done)
        while len(done) < len(order):
            one = order[len(done)]
            needed = self._needed(one)
            if needed is None:
                break
            start = self._start(rank, needed)
            end = start + self._times.of(one)
            done.append(Timed(rank, one, start, end))
            sent = self._send(one, rank, end)
            self._sent[rank] = sent if self._sender_waits(order, len(done) - 1) else end
        return len(done) > before

    def _start(self, rank: int, needed: _Input) -> float:
        """Return when a rank's next pass begins."""
        if not self._done[rank]:
            return needed.here
        free = self._done[rank][-1].end
        received = needed.other_rank and needed.end < free
        gap = self._times.to_next_pass(rank, received)  # where measured, with waiting for what is sent at once
        return max(needed.here, self._sent[rank], free + gap)

    def _needed(self, one: Pass) -> _Input | None:
        """Return what a pass needs from other stages; None where it is not known yet when that is there."""
        if one.kind is Kind.WEIGHT or (one.kind is Kind.FORWARD and one.stage == 0):
            return _OWN
        if one.kind is not Kind.FORWARD and one.stage == self._last:
            return _OWN  # its forward pass came before, on the same rank
        return self._inputs.get((one.stage, one.kind is Kind.FORWARD, one.micro_batch))

    def _send(self, one: Pass, rank: int, end: float) -> float:
        """Note when the result of a pass is at the next stage, forward or back; return that time."""
        if one.kind is Kind.WEIGHT:
            return end
        forward = one.kind is Kind.FORWARD
        to = one.stage + (1 if forward else -1)
        if not 0 <= to <= self._last:
            return end
        there = rank_of(self._layout, to)
        here = end + (self._times.to_other_rank(there) if there != rank else 0.0)
        self._inputs[to, forward, one.micro_batch] = _Input(end, here, there != rank)
        return here

    def _sender_waits(self, order: Order, place: int) -> bool:
        """Say whether the rank waits for the message of a pass: where 1f1b turns between forward and backward.

        torch's 1f1b sends there in one batch with what it receives, and waits for both.
        """
        if self._layout.pp_schedule != "1f1b" or place + 1 == len(order):
            return False
        return order[place].kind is not order[place + 1].kind
