"""Which rank the others wait for, from the durations of their collectives: no clocks are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from study.diagnosis.intervals import clip, difference, union
from study.diagnosis.operations import Kind
from study.diagnosis.shares import RankTime
from study.diagnosis.trace import Trace
from study.diagnosis.windows import Window, work_of

MOST = 0.5
"""Share of all waiting for which one rank must be to blame to be called a straggler; of two ranks 3/4."""


@dataclass(frozen=True)
class Waiting:
    """How the ranks wait for each other in collectives.

    shares: by rank, the share of its window in which it waited for another and calculated nothing. slowest: the rank
    that most of that is due to, None where no rank stands out. blame: its part of all waiting, 0 to 1.
    """

    shares: Mapping[int, float]
    slowest: int | None
    blame: float

    @property
    def mean(self) -> float:
        """The mean share over ranks; 0 where there is one rank."""
        return float(np.mean(list(self.shares.values()))) if self.shares else 0.0


def waiting(traces: Sequence[Trace], windows: Sequence[Window], times: Sequence[RankTime]) -> Waiting:
    """Return how long each rank waited: a collective takes as long as its fastest rank needs, which came last.

    Matched are collectives of a name and group by their order in each step, those that all ranks of the group have.
    """
    calls = [_collectives(trace, window) for trace, window in zip(traces, windows, strict=True)]
    groups: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for number, own in enumerate(calls):
        for key, (start, end) in own.items():
            groups.setdefault(key, []).append((number, end - start))
    begun: list[list[float]] = [[] for _ in traces]
    until: list[list[float]] = [[] for _ in traces]
    blame = np.zeros(len(traces))
    for key, members in groups.items():
        last, least = min(members, key=lambda one: one[1])
        for number, took in members:
            start = calls[number][key][0]
            begun[number].append(start)
            until[number].append(start + took - least)
            blame[last] += took - least
    shares = {}
    for number, (trace, window) in enumerate(zip(traces, windows, strict=True)):
        waits = difference(union(np.array(begun[number]), np.array(until[number])), times[number].computing)
        shares[trace.rank] = clip(waits, window.start, window.end).length / window.length
    worst, whole = int(blame.argmax()), float(blame.sum())
    part = float(blame[worst]) / whole if whole else 0.0
    stands_out = len(traces) > 1 and part >= (MOST if len(traces) > 2 else 0.75)
    return Waiting(shares, traces[worst].rank if stands_out else None, part)


def _collectives(trace: Trace, window: Window) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Return start and end [µs] of each collective, by name and group, step, and its number among them there."""
    work = work_of(trace)
    chosen = (trace.kinds(work) == Kind.COMMUNICATION) & (window.of_work >= 0)
    count: dict[tuple[str, int], int] = {}
    found: dict[tuple[str, int, int], tuple[float, float]] = {}
    steps = window.of_work[chosen]
    own = work.where(chosen)
    for name, step, start, end in zip(own.name, steps, own.start, own.end, strict=True):
        place = (trace.names[name], int(step))
        count[place] = number = count.get(place, -1) + 1
        found[*place, number] = (float(start), float(end))
    return found


def excess(seconds: Mapping[int, Mapping[str, float]], rank: int) -> tuple[str, float]:
    """Return in which part of a step a rank takes most longer than the others' median, and how much [s]."""
    others = [parts for other, parts in seconds.items() if other != rank]
    more = {name: own - float(np.median([parts[name] for parts in others])) for name, own in seconds[rank].items()}
    name = max(more, key=lambda part: more[part])
    return name, more[name]
