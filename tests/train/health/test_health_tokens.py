"""Statistics of rows of tokens, and which rows stand out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from train.health.token_entropy import odd, statistics


def test_table() -> None:
    same = statistics(np.full(64, 7))
    assert (same.entropy, same.top_share, same.longest_run) == (0.0, 1.0, 64)
    assert same.repeated_share == pytest.approx(56 / 57)
    different = statistics(np.arange(64))
    assert different.entropy == pytest.approx(math.log(64))
    assert (different.distinct_share, different.longest_run, different.repeated_share) == (1.0, 1, 0.0)
    assert statistics(np.array([1, 1, 1, 2])).longest_run == 3


def test_a_row_of_one_token_stands_out_among_ordinary_ones() -> None:
    generator = np.random.default_rng(0)
    rows = [statistics(generator.integers(0, 50, 200)) for _ in range(20)]
    assert odd(rows) == []
    rows[7] = statistics(np.tile([1, 2], 100))
    assert odd(rows) == [7]


@pytest.mark.parametrize(("entropy", "found"), [(1.989, []), (1.987, [4])])
def test_rows_that_are_all_alike_have_room_for_six_thousandths(entropy: float, found: list[int]) -> None:
    """Of a median of 2 that is 0.012."""
    alike = replace(statistics(np.arange(8)), entropy=2.0)
    assert odd([alike] * 4 + [replace(alike, entropy=entropy)] + [alike] * 4) == found
