"""Orders, rows and mixtures number by number, worked out with whole numbers of Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from train.data.batch import Rows
from train.data.mixture import BLOCK, Mixture, quotas
from train.data.packing import Fitted
from train.data.rows import joined, merged
from train.data.shuffle import SeededOrder, hashed, permuted

WORD, STEP = (1 << 64) - 1, 0x9E3779B97F4A7C15


def mixed(value: int) -> int:
    """splitmix64's last steps."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def keys(seed: int, epoch: int) -> list[int]:
    state = mixed((mixed((seed + STEP) & WORD) + epoch + STEP) & WORD)
    return [mixed((state + n * STEP) & WORD) for n in range(1, 7)]


def sent(index: int, size: int, seed: int, epoch: int) -> int:
    """Where six rounds on the two halves send an index, again and again until it is below the size."""
    half = next(n for n in range(1, 40) if 4**n >= size)
    while True:
        left, right = divmod(index, 2**half)
        for key in keys(seed, epoch):
            left, right = right, left ^ mixed((right + key) & WORD) % 2**half
        index = left * 2**half + right
        if index < size:
            return index


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000])
def test_an_order_by_whole_numbers(size: int) -> None:
    few = min(size, 70)
    assert permuted(np.arange(few), size, 7, 3).tolist() == [sent(n, size, 7, 3) for n in range(few)]
    assert permuted(0, size, 7, 3).tolist() == [sent(0, size, 7, 3)]


def test_the_bits_of_an_index() -> None:
    assert hashed(np.arange(3), 7, 3).tolist() == [13575580699606805651, 4066711518320351125, 4642677323793361602]
    assert hashed(np.arange(9), 5, 0).tolist() == [mixed((n + keys(5, 0)[0]) & WORD) for n in range(9)]


def test_an_endless_order_goes_through_epoch_after_epoch() -> None:
    whole = [sent(n % 10, 10, 5, n // 10) for n in range(40)]
    order = SeededOrder(10, 5)
    assert order.run(3, 30).tolist() == whole[3:33]
    assert order.run(0, 10).tolist() == whole[:10] and order.run(9, 2).tolist() == whole[9:11]
    assert order.at(np.array([31, 2, 10])).tolist() == [whole[31], whole[2], whole[10]]
    assert order.run(5, 0).tolist() == []


def dealt(counts: tuple[int, int], seed: int, block: int) -> list[tuple[int, int]]:
    """Return source and rank of a block's rows: the k-th of n lies at a random place of the k-th of n parts."""
    key, places = keys(seed, block)[0], []
    pairs = [(source, rank) for source, count in enumerate(counts) for rank in range(count)]
    for place, (source, rank) in enumerate(pairs):
        jitter = (mixed((place + key) & WORD) >> 11) / 2**53
        places.append(((rank + jitter) / counts[source], source, rank))
    return [(source, rank) for _, source, rank in sorted(places)]


def test_rows_of_a_mixture() -> None:
    assert BLOCK == 16384 and quotas([3.0, 1.0]) == [12288, 4096]
    first, second = dealt((12288, 4096), 7, 0), dealt((12288, 4096), 7, 1)
    mixture = Mixture([3.0, 1.0], 7)
    which, index = mixture.draw(BLOCK - 40, 80)
    assert which.tolist() == [source for source, _ in (*first[-40:], *second[:40])]
    assert index.tolist() == [rank for _, rank in first[-40:]] + [
        rank + (12288, 4096)[source] for source, rank in second[:40]
    ]
    assert mixture.draw(0, 5)[0].tolist() == [0, 1, 0, 0, 0], "back in the first block"
    ones = sum(source for source, _ in second[:100])
    assert mixture.consumed(BLOCK + 100).tolist() == [12288 + 100 - ones, 4096 + ones]


def test_the_smallest_weight_is_one_row_of_a_block() -> None:
    assert quotas([16383.0, 1.0]) == [16383, 1] and quotas([1.0]) == [16384]
    assert quotas([1.0, 1.0, 1.0]) == [5462, 5461, 5461], "the first of equal remainders"
    with pytest.raises(ValueError, match=r"one is below 1/16384 of their sum: raise it"):
        quotas([3 * 16384.0, 1.0])


def rows(*first: int, whole: bool = True) -> Rows:
    """Return rows of two tokens that count up from these."""
    inputs = np.array([[n, n + 1] for n in first], dtype=np.int64)
    rest = (inputs + 200, inputs + 300) if whole else (None, None)
    return Rows(inputs, inputs + 100, *rest)


def values(found: Rows) -> list[Any]:
    fields = (found.inputs, found.targets, found.positions, found.documents)
    return [None if field is None else field.tolist() for field in fields]


@pytest.mark.parametrize("whole", [True, False])
def test_rows_are_put_in_their_places(whole: bool) -> None:
    one, two = rows(10, 20, whole=whole), rows(30, whole=whole)
    assert merged([(np.array([0, 1]), one)], 2) is one
    assert values(merged([(np.array([1, 0]), one)], 2)) == values(rows(20, 10, whole=whole))
    assert values(merged([(np.array([2, 0]), one), (np.array([1]), two)], 3)) == values(rows(20, 30, 10, whole=whole))
    assert joined([one]) is one
    assert values(joined([one, two])) == values(rows(10, 20, 30, whole=whole))
    assert values(joined([two, one])) == values(rows(30, 10, 20, whole=whole))


class Stream:
    """Documents of these sizes, of tokens 1, 2, 3, …, each with the separator 0 last."""

    separator = 0

    def __init__(self, *sizes: int) -> None:
        self.tokens = np.arange(1, sum(sizes) + 1)
        self.starts = np.array([0, *np.cumsum(sizes)], dtype=np.int64)
        self.tokens[self.starts[1:] - 1] = 0

    def document_starts(self) -> Any:
        return self.starts

    def copy(self, start: int, out: Any) -> None:
        out[:] = self.tokens[start : start + len(out)]


def test_documents_fitted_into_a_row() -> None:
    fitted = Fitted(Stream(3, 1), 6)  # type: ignore[arg-type]
    (row,) = (fitted.read(np.array([n])) for n in range(fitted.rows))
    assert [(start, tokens) for start, tokens in fitted.pieces(0)] == [(0, 3), (3, 1)]
    assert values(row) == [
        [[0, 1, 2, 0, 0, 0]],
        [[1, 2, 0, 0, -100, -100]],
        [[0, 1, 2, 0, 0, 1]],
        [[0, 0, 0, 1, 2, 2]],
    ]
    long = Fitted(Stream(5, 2), 4)  # type: ignore[arg-type]
    assert [long.pieces(n) for n in range(long.rows)] == [[(0, 4)], [(5, 2), (4, 1)]]
    assert values(long.read(np.array([1, 0]))) == [
        [[0, 6, 4, 0], [0, 1, 2, 3]],
        [[6, 0, 0, -100], [1, 2, 3, 4]],
        [[0, 1, 0, 0], [0, 1, 2, 3]],
        [[0, 0, 1, 2], [0, 0, 0, 0]],
    ]
