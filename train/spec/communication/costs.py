"""How long a message takes by alpha and beta: a start for each hop [s], and bytes over bandwidth (Hockney 1994).

Rings and trees as in Thakur, Rabenseifner and Gropp 2005 ("Optimization of collective communication operations in
MPICH"); two trees, which use a rank's links in both directions, as in Sanders, Speck and Träff 2009, and in NCCL.
Adding numbers up is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from train.spec.communication.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    REDUCE_SCATTER,
    SEND,
    bus_factor,
)

ALGORITHMS = ("ring", "tree", "best")


@dataclass(frozen=True)
class Link:
    """What a rank reaches its peers by: `alpha` to start a hop [s], `bandwidth` of one direction [B/s]."""

    alpha: float
    bandwidth: float


@dataclass(frozen=True)
class Reach:
    """How many of a group's ranks are joined by a link, of those that the links before it have made one."""

    ranks: int
    link: Link


def steps(collective: str, ranks: int, algorithm: str = "ring") -> float:
    """Return how many hops follow each other in a collective, each of which costs alpha."""
    if collective not in COLLECTIVES:
        raise ValueError(f"collective {collective!r} is not known: choose one of {', '.join(COLLECTIVES)}")
    if ranks < 2:
        return 0.0
    twice = 2.0 if collective == ALL_REDUCE else 1.0
    if collective == SEND:
        return 1.0
    return twice * (math.ceil(math.log2(ranks)) if algorithm == "tree" else ranks - 1)


def seconds(collective: str, ranks: int, size: float, link: Link, algorithm: str = "best") -> float:
    """Return how long a collective of `size` (as nccl-tests count it) takes `ranks` that one kind of link joins [s].

    ring: bytes are the fewest there can be, hops as many as ranks. tree: hops are log2 of them; an all-reduce goes up
    two trees and down again, 2 size / bandwidth; an all-gather doubles and a reduce-scatter halves what it sends, the
    fewest bytes too; an all-to-all (Bruck et al. 1997) sends half of all in each hop; a broadcast goes down, in pieces.
    best: the faster of both.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm {algorithm!r} is not known: choose one of {', '.join(ALGORITHMS)}")
    if algorithm == "best":
        return min(seconds(collective, ranks, size, link, one) for one in ("ring", "tree"))
    hops = steps(collective, ranks, algorithm)
    share = bus_factor(collective, ranks)
    if algorithm == "tree" and ranks > 1:
        share = {ALL_REDUCE: 2.0, ALL_TO_ALL: hops / 2}.get(collective, share)
    return hops * link.alpha + share * size / link.bandwidth


def hierarchical(collective: str, size: float, reaches: Sequence[Reach], algorithm: str = "best") -> float:
    """Return how long a collective takes over several kinds of links, the innermost first [s].

    An all-reduce is a reduce-scatter within each domain, an all-reduce of a part between domains, and an all-gather; so
    each link carries the part that the links within leave. An all-to-all sends each peer its part by the link that
    reaches it, one kind of link after the other; a broadcast goes to each domain first; a send takes the last link.
    """
    reaches = [reach for reach in reaches if reach.ranks > 1]
    if not reaches:
        return 0.0
    if collective == SEND:
        return seconds(SEND, 2, size, reaches[-1].link)
    if collective == BROADCAST:
        return sum(seconds(BROADCAST, reach.ranks, size, reach.link, algorithm) for reach in reaches)
    if collective == ALL_TO_ALL:
        return _exchange(size, reaches, algorithm)
    total, inside = 0.0, 1
    for number, reach in enumerate(reaches):
        part = size / inside
        if collective != ALL_REDUCE:
            total += seconds(collective, reach.ranks, part, reach.link, algorithm)
        elif number == len(reaches) - 1:
            total += seconds(ALL_REDUCE, reach.ranks, part, reach.link, algorithm)
        else:
            halves = (REDUCE_SCATTER, ALL_GATHER)
            total += sum(seconds(half, reach.ranks, part, reach.link, algorithm) for half in halves)
        inside *= reach.ranks
    return total


def _exchange(size: float, reaches: Sequence[Reach], algorithm: str) -> float:
    if len(reaches) == 1:
        return seconds(ALL_TO_ALL, reaches[0].ranks, size, reaches[0].link, algorithm)
    everyone = math.prod(reach.ranks for reach in reaches)
    total, inside = 0.0, 1
    for reach in reaches:
        peers = inside * (reach.ranks - 1)
        total += peers * (reach.link.alpha + size / everyone / reach.link.bandwidth)
        inside *= reach.ranks
    return total


def exposed(communication: float, compute: float, overlap: float) -> float:
    """Return the seconds of communication that a step waits for, if a share `overlap` of compute can hide messages.

    ValueError for a share that is none.
    """
    if not 0.0 <= overlap <= 1.0:
        raise ValueError(f"overlap={overlap} is not allowed: a share from 0 (nothing is hidden) to 1")
    return max(0.0, communication - overlap * compute)
