"""Statistics of a row's tokens, by which odd text is told from ordinary text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_GRAM = 8


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of one row. entropy: of its tokens' frequencies [nats]. top_share: of the most frequent token.

    distinct_share: distinct tokens over tokens. longest_run: of one token repeated [tokens]. repeated_share: of its
    8-grams that occurred before in the row.
    """

    entropy: float
    top_share: float
    distinct_share: float
    longest_run: int
    repeated_share: float


def statistics(tokens: NDArray[np.integer]) -> TokenStatistics:
    """Return the statistics of one row of tokens, (length,)."""
    counts = np.unique(tokens, return_counts=True)[1]
    shares = counts / len(tokens)
    ends = np.flatnonzero(np.diff(tokens)) + 1
    runs = np.diff(np.concatenate(([0], ends, [len(tokens)])))
    grams = np.lib.stride_tricks.sliding_window_view(tokens, min(_GRAM, len(tokens)))
    return TokenStatistics(
        entropy=float(-(shares * np.log(shares)).sum()) + 0.0,
        top_share=float(shares.max()),
        distinct_share=len(counts) / len(tokens),
        longest_run=int(runs.max()),
        repeated_share=1.0 - len(np.unique(grams, axis=0)) / len(grams),
    )


def odd(rows: list[TokenStatistics], threshold: float = 6.0) -> list[int]:
    """Return which rows stand out: their entropy lies over `threshold` median deviations below the median."""
    entropies = np.array([row.entropy for row in rows])
    median = float(np.median(entropies))
    spread = max(float(np.median(np.abs(entropies - median))), 1e-3 * abs(median), 1e-9)
    return [int(i) for i in np.flatnonzero((median - entropies) / spread > threshold)]
