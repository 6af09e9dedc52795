"""Which source every row of the endless training order comes from: a pure function of (weights, seed, row number).

Rows are dealt in blocks of `BLOCK`. Each block holds the same number of rows of every source (its weight, rounded to
1/16384), spread evenly: a source's k-th row of a block lies at a random place of the k-th of its equal parts of the
block. So every global batch has nearly the wanted composition, and any row is found without walking to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from train.data.batch import Integers
from train.data.shuffle import hashed

BLOCK = 1 << 14


def quotas(weights: Sequence[float]) -> list[int]:
    """Return how many rows of a block each source gets: the weights' shares by largest remainder.

    Raises ValueError for weights that are not positive or too small to get one row.
    """
    if any(weight <= 0 for weight in weights):
        raise ValueError(f"data.sources: weights {list(weights)} must all be positive; leave a source out to drop it")
    total = sum(weights)
    exact = [weight / total * BLOCK for weight in weights]
    counts = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for n in order[: BLOCK - sum(counts)]:
        counts[n] += 1
    if min(counts) < 1:
        raise ValueError(f"data.sources: weights {list(weights)}: one is below 1/{BLOCK} of their sum: raise it")
    return counts


class Mixture:
    """The order of sources for these weights and this seed."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self.quotas = np.array(quotas(weights), dtype=np.int64)
        self.seed = seed
        self._block: tuple[int, Integers, Integers] | None = None

    def draw(self, start: int, count: int) -> tuple[Integers, Integers]:
        """Return, for rows start to start + count, their source and which row of that source's own order each is."""
        which, index = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            block, first = divmod(start + done, BLOCK)
            sources, ranks = self._dealt(block)
            take = min(count - done, BLOCK - first)
            here = sources[first : first + take]
            which[done : done + take] = here
            index[done : done + take] = block * self.quotas[here] + ranks[first : first + take]
            done += take
        return which, index

    def consumed(self, rows: int) -> Integers:
        """Return how many rows of each source are among the first `rows`."""
        block, rest = divmod(rows, BLOCK)
        sources, _ = self._dealt(block)
        inside = np.bincount(sources[:rest], minlength=len(self.quotas)).astype(np.int64)
        return np.asarray(block * self.quotas + inside)

    def _dealt(self, block: int) -> tuple[Integers, Integers]:
        """Return the sources of a block's rows, and how many rows of the same source precede each in the block."""
        if self._block is not None and self._block[0] == block:
            return self._block[1], self._block[2]
        sources = np.repeat(np.arange(len(self.quotas)), self.quotas)
        ranks = np.arange(BLOCK) - np.repeat(np.cumsum(self.quotas) - self.quotas, self.quotas)
        jitter = (hashed(np.arange(BLOCK), self.seed, block) >> np.uint64(11)).astype(np.float64) / (1 << 53)
        places: npt.NDArray[np.float64] = (ranks + jitter) / self.quotas[sources]
        order = np.lexsort((sources, places))
        self._block = (block, sources[order].astype(np.int64), ranks[order].astype(np.int64))
        return self._block[1], self._block[2]
