"""The seeded order of windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.data.shuffle import permuted


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(np.arange(size), size, seed, epoch).tolist()) == list(range(size))


@settings(max_examples=20)
@given(st.integers(2**33, 2**50), st.lists(st.integers(0, 2**33 - 1), min_size=1, max_size=50, unique=True))
def test_huge_ranges_need_no_memory(size: int, positions: list[int]) -> None:
    found = permuted(positions, size, 1, 2)
    assert len(set(found.tolist())) == len(positions)
    assert found.min() >= 0
    assert found.max() < size


@pytest.mark.parametrize(("seed", "epoch"), [(1, 0), (0, 1), (1, 1)])
def test_seed_and_epoch_change_the_order(seed: int, epoch: int) -> None:
    positions = np.arange(1000)
    same = permuted(positions, 1000, 0, 0) == permuted(positions, 1000, seed, epoch)
    assert same.sum() < 10  # about one is expected by chance


def test_neighbours_do_not_stay_together() -> None:
    order = permuted(np.arange(50_000), 50_000, 0, 0)
    assert abs(np.corrcoef(order, np.arange(50_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.02


def test_the_order_never_changes() -> None:
    """A resumed run of last year reads the same sequences: these numbers are fixed."""
    assert permuted(np.arange(8), 1000, 0, 0).tolist() == [159, 73, 848, 440, 759, 484, 587, 237]
