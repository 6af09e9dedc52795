"""The order in which each rank of a pipeline runs its passes, for every schedule of the trainer.

The orders are those of torch.distributed.pipelining, written anew in pure Python: torch can only make them from stages
of a real model. Times do not matter here; `simulation` finds when each pass runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import SCHEDULES, micro_batches, stages_of, stages_per_rank


class Kind(Enum):
    """What a pass computes; the values are torch's letters."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


@dataclass(frozen=True)
class Pass:
    """One micro-batch going through one stage: forward, all of backward, or the gradients of inputs or of weights."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.micro_batch}"


Order = tuple[Pass, ...]


def orders(layout: ParallelConfig, count: int) -> tuple[Order, ...]:
    """Return each rank's passes of `count` micro-batches, in the order in which it runs them.

    Raises ValueError for a number of micro-batches that the schedule cannot take.
    """
    check_count(layout, count)
    order = _ORDERS[layout.pp_schedule]
    return tuple(order(layout, rank, count) for rank in range(layout.pp))


def check_count(layout: ParallelConfig, count: int) -> None:
    """Raise ValueError for a number of micro-batches that the schedule cannot take."""
    if count < 1:
        raise ValueError(f"micro_batches={count} is not allowed: at least 1")
    fitting = micro_batches(layout, count)
    if fitting != count:
        schedule = SCHEDULES[layout.pp_schedule]
        why = "at least as many as stages" if schedule.fills else f"rounds of equal size, at least pp={layout.pp} each"
        raise ValueError(
            f"micro_batches={count} is not allowed with pp_schedule={layout.pp_schedule} and pp={layout.pp}: it takes "
            f"{why}; the next number that fits is {fitting}"
        )


def in_flight(order: Order) -> int:
    """Return how many passes of one rank's order at most have begun forward and still wait for their last gradient."""
    last = Kind.WEIGHT if any(one.kind is Kind.WEIGHT for one in order) else Kind.BACKWARD
    waiting = most = 0
    for one in order:
        waiting += (one.kind is Kind.FORWARD) - (one.kind is last)
        most = max(most, waiting + (one.kind is last))
    return most


def _gpipe(layout: ParallelConfig, rank: int, count: int) -> Order:
    """All forward passes, then all backward passes."""
    return tuple(Pass(rank, kind, i) for kind in (Kind.FORWARD, Kind.BACKWARD) for i in range(count))


def _one_forward_one_backward(layout: ParallelConfig, rank: int, count: int) -> Order:
    """As many forward passes as there are ranks from here to the end, then one backward and one forward in turn."""
    ahead = min(count, layout.pp - rank)
    passes = [Pass(rank, Kind.FORWARD, i) for i in range(ahead)]
    for i in range(count):
        passes.append(Pass(rank, Kind.BACKWARD, i))
        if ahead + i < count:
            passes.append(Pass(rank, Kind.FORWARD, ahead + i))
    return tuple(passes)


class _Interleaved:
    """One rank's forward and backward passes by number: which stage and micro-batch each of them is.

    Micro-batches come in rounds; a round passes through all stages of the rank before the next one begins.
    """

    def __init__(self, layout: ParallelConfig, rank: int, count: int) -> None:
        self._stages, self._pp, self._rank = stages_per_rank(layout), layout.pp, rank
        self._round = count // max(1, count // layout.pp)
        self.passes = count * self._stages

    def ahead(self, hop: int) -> int:
        """Return how many forward passes come before the first backward pass, `hop` more for each rank from the end."""
        return min(self.passes, (self._stages - 1) * self._round + hop * (self._pp - 1 - self._rank))

    def forward(self, number: int) -> Pass:
        """Return a forward pass."""
        return self._at(number, Kind.FORWARD)

    def backward(self, number: int, kind: Kind) -> Pass:
        """Return a backward pass: the stages in reverse."""
        return self._at(number, kind)

    def _at(self, number: int, kind: Kind) -> Pass:
        whole, place = divmod(number, self._round * self._stages)
        turn, within = divmod(place, self._round)
        if kind is not Kind.FORWARD:
            turn = self._stages - 1 - turn
        return Pass(turn * self._pp + self._rank, kind, whole * self._round + within)


def _interleaved(layout: ParallelConfig, rank: int, count: int) -> Order:
    """1F1B over several stages of a rank (Narayanan et al. 2021, figure 4)."""
    numbered = _Interleaved(layout, rank, count)
    ahead = numbered.ahead(hop=2)
    passes = [numbered.forward(i) for i in range(ahead)]
    for i in range(numbered.passes):
        if ahead + i < numbered.passes:
            passes.append(numbered.forward(ahead + i))
        passes.append(numbered.backward(i, Kind.BACKWARD))
    return tuple(passes)


def _zb1p(layout: ParallelConfig, rank: int, count: int) -> Order:
    """Interleaved with half the forward passes ahead; weight gradients lag by the rank's number (Qi et al. 2024)."""
    numbered = _Interleaved(layout, rank, count)
    ahead = numbered.ahead(hop=1)
    passes = [numbered.forward(i) for i in range(ahead)]
    done = 0
    for i in range(numbered.passes):
        if ahead + i < numbered.passes:
            passes.append(numbered.forward(ahead + i))
        passes.append(numbered.backward(i, Kind.INPUT))
        if i >= rank:
            passes.append(numbered.backward(done, Kind.WEIGHT))
            done += 1
    passes += [numbered.backward(i, Kind.WEIGHT) for i in range(done, numbered.passes)]
    return tuple(passes)


class _Line:
    """One rank's passes of its two stages in a V, numbered per stage and kind as they are added."""

    def __init__(self, stages: list[int]) -> None:
        self._stages = stages
        self.passes: list[Pass] = []
        self.next = {(turn, kind): 0 for turn in (0, 1) for kind in Kind}

    def add(self, turn: int, *kinds: Kind) -> None:
        """Add the next pass of each kind through the rank's stage number `turn`."""
        for kind in kinds:
            self.passes.append(Pass(self._stages[turn], kind, self.next[turn, kind]))
            self.next[turn, kind] += 1

    def left(self, turn: int) -> int:
        """Return how many gradients of inputs still wait for those of weights."""
        return self.next[turn, Kind.INPUT] - self.next[turn, Kind.WEIGHT]


def _zbv(layout: ParallelConfig, rank: int, count: int) -> Order:
    """Two stages a rank in a V; gradients of weights fill the end (Qi et al. 2024, section 6)."""
    pp, line = layout.pp, _Line(stages_of(layout, rank))
    F, I, W = Kind.FORWARD, Kind.INPUT, Kind.WEIGHT  # noqa: E741  # the schedule's own letters
    whole = max(2 * pp - 1, count)  # as many as fill it; those that there are not are left out at the end
    for _ in range(2 * (pp - rank) - 1):
        line.add(0, F)
    for _ in range(rank):
        line.add(1, F)
        line.add(0, F)
    for _ in range(pp - rank):
        line.add(1, F, I, W)
    while line.next[1, F] < line.next[0, F] or line.next[0, F] < whole:
        if line.next[0, F] < whole:
            line.add(0, F)
        line.add(0, I, W)
        line.add(1, F, I, W)
    for _ in range(rank):
        line.add(0, I)
        line.add(1, I)
    for _ in range(pp - rank):
        line.add(0, I, W)
    for turn in (1, 0):
        for _ in range(line.left(turn)):
            line.add(turn, W)
    return tuple(one for one in line.passes if one.micro_batch < count)


_ORDERS: dict[str, Callable[[ParallelConfig, int, int], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zb1p": _zb1p,
    "zbv": _zbv,
}
