"""Best-fit-decreasing bin packing of documents into rows, by counts of equal lengths.

Best fit keeps documents whole that plain concatenation would cut (Ding et al. 2024, "Fewer Truncations Improve
Language Modeling"). Pieces of one length are interchangeable, so that rows are filled as patterns of lengths with
multiplicities (Krell et al. 2021): the work grows with the distinct lengths and not with the documents.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from train.data.batch import Integers


@dataclass(frozen=True)
class Packed:
    """Rows of pieces: row r holds the pieces ends[r - 1] to ends[r], each `tokens` long from `start` in the stream."""

    start: Integers
    tokens: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.ends)

    def row(self, number: int) -> list[tuple[int, int]]:
        """Return (start, tokens) of every piece of a row."""
        first = int(self.ends[number - 1]) if number else 0
        here = slice(first, int(self.ends[number]))
        return list(zip(self.start[here].tolist(), self.tokens[here].tolist(), strict=True))


def fit(starts: Integers, sizes: Integers, length: int) -> Packed:
    """Return documents (their starts in the stream and sizes, in tokens) packed into rows of `length` tokens."""
    whole, rest = np.divmod(sizes, length)
    full_starts = np.repeat(starts, whole) + _ranks(whole) * length
    left = rest > 0
    rest_starts, rests = (starts + whole * length)[left], rest[left]
    by_length = np.argsort(rests, kind="stable")
    rest_starts, rests = rest_starts[by_length], rests[by_length]
    counts = np.bincount(rests, minlength=length + 1)
    next_piece = np.cumsum(counts) - counts

    pieces: list[Integers] = []
    row_sizes = [np.ones(len(full_starts), dtype=np.int64)]
    for pattern, rows in patterns(counts.tolist(), length):
        columns = []
        for size, times in pattern:
            taken = np.arange(next_piece[size], next_piece[size] + rows * times)
            next_piece[size] += rows * times
            columns.append(taken.reshape(rows, times))
        pieces.append(np.concatenate(columns, axis=1).ravel())
        row_sizes.append(np.full(rows, sum(times for _, times in pattern), dtype=np.int64))
    order = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
    return Packed(
        start=np.concatenate([full_starts, rest_starts[order]]),
        tokens=np.concatenate([np.full(len(full_starts), length, dtype=np.int64), rests[order]]),
        ends=np.cumsum(np.concatenate(row_sizes)),
    )


Pattern = tuple[tuple[int, int], ...]
"""What one row holds: (length, how many pieces of it), longest first."""


def patterns(counts: list[int], length: int) -> list[tuple[Pattern, int]]:
    """Return best-fit-decreasing rows for counts[n] pieces of n tokens: patterns, and how many rows have each.

    A piece goes where it leaves the least room, longest pieces first. A row in which one piece was just put has less
    room than any other that could take the next, so that a row takes equal pieces until no more fit.
    """
    room: dict[int, list[tuple[Pattern, int]]] = defaultdict(list)
    open_rooms = 0  # bit n: there are rows with room for n tokens
    for size in range(length, 0, -1):
        left = counts[size]
        while left:
            fitting = open_rooms >> size
            if fitting:
                free = size + (fitting & -fitting).bit_length() - 1
                pattern, rows = room[free].pop()
                if not room[free]:
                    open_rooms &= ~(1 << free)
            else:
                free, pattern = length, ()
                rows = -(-left // (length // size))
            times = free // size
            filled = min(rows, left // times)
            rest = left - filled * times if filled < rows else 0
            placed = [(filled, times), (1 if rest else 0, rest), (rows - filled - (1 if rest else 0), 0)]
            for number, more in placed:
                if number:
                    after = free - more * size
                    grown = (*pattern, (size, more)) if more else pattern
                    room[after].append((grown, number))
                    open_rooms |= 1 << after if after else 0
            left -= filled * times + rest
    return [one for free in sorted(room) for one in room[free]]


def _ranks(counts: Integers) -> Integers:
    """Return 0, 1, ... count - 1 for every count, one after the other."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts))
