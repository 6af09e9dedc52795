"""Runs are found again in another table where their losses were written to other decimals, and others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.inputs import same_runs


def table(*rows: tuple[float, float, float]) -> Any:
    return np.array(rows, dtype=float)


FULL = table((1e8, 2e9, 3.123456789012), (2e8, 4e9, 2.987654321098), (4e8, 8e9, 2.712345678901))


def found(rows: Any, others: Any) -> tuple[list[bool], list[bool], list[bool]]:
    same = same_runs.same(rows, others)
    return same.exactly.tolist(), same.rounded.tolist(), same.perhaps.tolist()


def in_loss(rows: Any, loss: Any) -> Any:
    return np.column_stack((rows[:, :2], loss))


NONE, ALL = [False] * 3, [True] * 3


@pytest.mark.parametrize("decimals", range(8))
def test_losses_are_found_to_the_decimals_of_either_table(decimals: int) -> None:
    short = in_loss(FULL, np.round(FULL[:, 2], decimals))
    expected = (NONE, ALL, NONE) if decimals >= 3 else (NONE, NONE, ALL)
    assert found(short, FULL) == expected
    assert found(FULL, short) == expected
    assert found(short, short)[0] == ALL
    step = max(10.0**-decimals, 1e-5)  # single precision is finer
    assert found(in_loss(FULL, np.round(FULL[:, 2], decimals) + step), FULL) == (NONE, NONE, NONE)


def test_losses_of_a_rounded_table_that_end_in_zeros_have_its_decimals() -> None:
    short = table((1e8, 2e9, 3.5), (2e8, 4e9, 2.9877))
    near = table((1e8, 2e9, 3.5003), (2e8, 4e9, 2.98766))
    assert found(short, near) == ([False, False], [False, True], [False, False])


def test_single_precision_and_four_digits_of_sizes_are_the_same_runs() -> None:
    single = FULL.astype(np.float32).astype(float)
    assert found(single, FULL) == (NONE, ALL, NONE)
    sizes = FULL * [1.0004, 0.9996, 1.0]
    assert found(sizes, FULL) == (NONE, ALL, NONE)
    assert found(FULL * [1.001, 1.0, 1.0], FULL) == (NONE, NONE, NONE)
    assert found(FULL * [1.0, 0.999, 1.0], FULL) == (NONE, NONE, NONE)


def test_equal_rows_are_exactly_the_same_and_others_are_not() -> None:
    assert found(FULL, FULL) == (ALL, NONE, NONE)
    assert found(FULL * (1 + 1e-10), FULL) == (ALL, NONE, NONE)
    assert found(FULL, FULL[:1]) == ([True, False, False], NONE, NONE)
    assert found(FULL, FULL[:0]) == (NONE, NONE, NONE)
    assert found(FULL[:0], FULL) == ([], [], [])
    seeds = in_loss(FULL, FULL[:, 2] * 1.0005)
    assert found(seeds, FULL) == (NONE, NONE, NONE)


def test_another_run_in_a_table_of_rounded_ones_is_not_rounded() -> None:
    mixed = table((1e8, 2e9, 3.1235), (2e8, 4e9, 3.0), (9e8, 1e10, 2.7123456789))
    assert found(mixed, FULL) == (NONE, [True, False, False], [False, True, False])
