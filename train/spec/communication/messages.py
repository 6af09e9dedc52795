"""One kind of message: which collective, over which ranks, how large, how often in a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BROADCAST, SEND = "all_to_all", "broadcast", "send"
COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND)


@dataclass(frozen=True)
class Message:
    """A message that one rank takes part in `count` times a step.

    axis: of the mesh (train.parallel.mesh): fsdp, expert_fsdp, dp_replicate, tokens, cp, ep, tp, pp, world, or `ends`,
    a pipeline's first and last rank. ranks: of its group. size: what nccl-tests call it [bytes]: the whole buffer of an
    all-reduce or a broadcast, what an all-gather gives, what one rank hands to a reduce-scatter or an all-to-all, what
    one send moves. of: what is sent. phase: forward, backward or update, when it is sent.
    """

    collective: str
    axis: str
    ranks: int
    size: int
    count: int
    of: str
    phase: str

    @property
    def volume(self) -> int:
        """Size times count [bytes]."""
        return self.size * self.count

    @property
    def sent(self) -> float:
        """What one rank puts on its links in a step [bytes], by the fewest that the collective can do with."""
        return bus_factor(self.collective, self.ranks) * self.volume


def bus_factor(collective: str, ranks: int) -> float:
    """Return what a rank has to send at least, as a share of a message's size.

    It makes bus bandwidth of size / time: 2 (n - 1) / n for an all-reduce, (n - 1) / n for an all-gather, a
    reduce-scatter and an all-to-all, 1 for a broadcast and a send (nccl-tests, doc/PERFORMANCE.md).
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective {collective!r} is not known: choose one of {', '.join(COLLECTIVES)}")
    if collective in (BROADCAST, SEND):
        return 1.0 if ranks > 1 else 0.0
    return (2.0 if collective == ALL_REDUCE else 1.0) * (ranks - 1) / ranks


def between_ranks(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages that are sent: more than one rank, at least once, at least one byte."""
    return tuple(one for one in messages if one.ranks > 1 and one.volume > 0)
