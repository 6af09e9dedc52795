"""Rungs of successive halving: the resources at which trials are compared, and who is in each."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sweeps.history import rank_value


def levels(r: int, R: int, eta: int, skip: int = 0) -> tuple[int, ...]:
    """Return the rungs r·eta^skip, r·eta^(skip+1), …, the last one exactly R [resource].

    By integers: in floating point log(243)/log(3) is just below 5, which would lose a rung. ValueError where
    1 <= r <= R, eta >= 2 or skip >= 0 does not hold.
    """
    if not 1 <= r <= R:
        raise ValueError(f"r={r} and R={R}: the first rung must be at least 1 and at most the full resource R")
    if eta < 2:
        raise ValueError(f"eta={eta} is not allowed: one trial in eta is promoted, so it is 2 or more (3 is usual)")
    found, level = [], r
    while level < R:
        found.append(level)
        level *= eta
    every = (*found, R)
    if not 0 <= skip < len(every):
        raise ValueError(f"bracket {skip} does not exist: r={r}, R={R}, eta={eta} make {len(every)}")
    return every[skip:]


def brackets(r: int, R: int, eta: int) -> int:
    """Return how many brackets there are: one for each rung that trials may start at, R itself the last.

    Hyperband's are 1 + floor(log_eta(R / r)) with rungs counted down from R (Li et al. 2018), so that the last one
    always trains straight to R; counted up from r there is one more where r·eta^k does not meet R.
    """
    return len(levels(r, R, eta))


def first_rung(least: int, R: int, eta: int) -> int:
    """Return the lowest of R, R/eta, R/eta², …, rounded up, that is at least `least` [resource].

    Rungs from there up are eta apart to the end. Counted up from `least` the last one below R may lie just before it,
    where two of three trials would be given up with nothing left to train. ValueError as of :func:`levels`.
    """
    levels(least, R, eta)
    parts = 1
    while parts * eta <= R and -(-R // (parts * eta)) >= least:
        parts *= eta
    return -(-R // parts)


def always_enough(rungs: int, eta: int) -> int:
    """Return how many trials let promotion bring one to the last of `rungs` in any case, where none fails."""
    count: int = eta ** (rungs - 1)
    return count


@dataclass
class Rung:
    """Who was recorded at one level. Entries are ordered by value, then by arrival, so that ties have an order.

    since: at which resource each trial's value was reported: at the level, or at the first report after it.
    """

    level: int
    entries: list[tuple[float, int, int]] = field(default_factory=list)
    of: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    promoted: set[int] = field(default_factory=set)
    open: list[tuple[float, int, int]] = field(default_factory=list)
    since: dict[int, int] = field(default_factory=dict)

    def record(self, trial: int, value: float, resource: int | None = None) -> None:
        """Enter a trial's value, reported at `resource` (None: at the level); one that was here already is replaced."""
        self.since[trial] = self.level if resource is None else resource
        old = self.of.get(trial)
        if old is not None:
            _remove(self.entries, old)
            if trial not in self.promoted:
                _remove(self.open, old)
        entry = (rank_value(value), old[1] if old is not None else len(self.of), trial)
        self.of[trial] = entry
        insort(self.entries, entry)
        if trial not in self.promoted:
            insort(self.open, entry)

    def promote(self, trial: int) -> None:
        """Mark a trial as one that went on from here."""
        if trial in self.of and trial not in self.promoted:
            _remove(self.open, self.of[trial])
        self.promoted.add(trial)

    def promotables(self, eta: int) -> Iterator[int]:
        """Yield all trials that have not gone on and are in the top floor(n/eta) of all n recorded here, best first."""
        for entry in self.open:
            if entry[0] == float("inf") or bisect_left(self.entries, entry) >= len(self.entries) // eta:
                return
            yield entry[2]

    def continues(self, trial: int, eta: int, tolerance: float = 0.0) -> bool:
        """Say whether a trial is in the top max(1, floor(n/eta)) of those recorded so far; equal values all are.

        A value up to `tolerance` worse than the last of the top counts as equal to it.
        """
        value = self.of[trial][0]
        cutoff = self.entries[max(1, len(self.entries) // eta) - 1][0]
        return value <= cutoff + tolerance and value != float("inf")


def crossed(levels: Sequence[int], before: int, now: int) -> range:
    """Return the numbers of the levels in (before, now]: those that a report at `now` fills after one at `before`."""
    first = next((k for k, level in enumerate(levels) if level > before), len(levels))
    last = next((k for k, level in enumerate(levels) if level > now), len(levels))
    return range(first, max(first, last))


def enter(rungs: Sequence[Rung], trial: int, before: int, resource: int, value: float) -> list[int]:
    """Enter a report of a trial that stood at `before`; return the numbers of the rungs that it is in.

    It fills the rungs in (before, resource]. One that comes again, as after a retry from a checkpoint, replaces
    what was entered at its resource or a later one: each rung holds the latest word on the first value at or after it.
    """
    again = [k for k, rung in enumerate(rungs) if rung.level <= resource <= rung.since.get(trial, -1)]
    filled = sorted({*again, *crossed([rung.level for rung in rungs], before, resource)})
    for k in filled:
        rungs[k].record(trial, value, resource)
    return filled


def _remove(entries: list[tuple[float, int, int]], entry: tuple[float, int, int]) -> None:
    del entries[bisect_left(entries, entry)]
