"""A seeded order of everything, without holding it in memory.

A Feistel network permutes the smallest power of four that covers `size`; walking its cycle until the value is below
`size` restricts it to the range (Black and Rogaway 2002). Position i costs O(1), whatever `size` is, and the result
does not depend on the version of a random number generator.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

UIntArray: TypeAlias = npt.NDArray[np.uint64]

_ROUNDS = 6
_BLOCK = 4096
"""Positions whose numbers are worked out together, so that the arithmetic of the order costs little per step."""

_WORD = (1 << 64) - 1


def permuted(indices: npt.ArrayLike, size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return where the permutation of ``range(size)`` that belongs to (seed, epoch) sends `indices`."""
    values = np.array(indices, dtype=np.uint64, ndmin=1)
    assert size > 0
    assert values.size == 0 or int(values.max()) < size
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    limit = np.uint64(size)
    values = _feistel(values, half, keys)
    outside = np.flatnonzero(values >= limit)
    while outside.size:
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= limit]
    return values.astype(np.int64)


def hashed(indices: npt.ArrayLike, seed: int, block: int) -> UIntArray:
    """Return 64 well-mixed bits for each index, a function of (index, seed, block) alone."""
    return _mixed(np.array(indices, dtype=np.uint64) + _keys(seed, block)[0])


class SeededOrder:
    """Numbers below `size` in an endless order: every epoch holds each once, permuted by (seed, epoch)."""

    def __init__(self, size: int, seed: int) -> None:
        assert size > 0
        self.size, self.seed = size, seed
        self._span = min(_BLOCK, size)  # so a block touches two epochs at most
        self._block: tuple[int, npt.NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def run(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers at positions start to start + count."""
        numbers = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            block, first = divmod(start + done, self._span)
            take = min(count - done, self._span - first)
            numbers[done : done + take] = self._ordered(block)[first : first + take]
            done += take
        return numbers

    def at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers at these positions, which may be in any order but are best near to each other."""
        numbers = np.empty(len(positions), dtype=np.int64)
        blocks, insides = np.divmod(positions, self._span)
        for block in np.unique(blocks):
            here = blocks == block
            numbers[here] = self._ordered(int(block))[insides[here]]
        return numbers

    def _ordered(self, block: int) -> npt.NDArray[np.int64]:
        if self._block[0] != block:
            positions = np.arange(block * self._span, (block + 1) * self._span, dtype=np.int64)
            epochs, indices = np.divmod(positions, self.size)
            numbers = np.empty(self._span, dtype=np.int64)
            for epoch in np.unique(epochs):
                inside = epochs == epoch
                numbers[inside] = permuted(indices[inside], self.size, self.seed, int(epoch))
            self._block = (block, numbers)
        return self._block[1]


def _feistel(values: UIntArray, half: int, keys: list[np.uint64]) -> UIntArray:
    """Return one pass over values of ``2 * half`` bits: a bijection, whatever the mixing function does."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << shift) | right


def _mixed(values: UIntArray) -> UIntArray:
    """Return the splitmix64 finaliser of `values` (arithmetic modulo 2^64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    state = 0
    for part in (seed, epoch):
        state = int(_mixed(np.array([(state + part + 0x9E3779B97F4A7C15) & _WORD], dtype=np.uint64))[0])
    steps = np.array([(state + n * 0x9E3779B97F4A7C15) & _WORD for n in range(1, _ROUNDS + 1)], dtype=np.uint64)
    return list(_mixed(steps))
