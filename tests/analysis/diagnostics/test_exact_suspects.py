"""Losses that cannot be what they are said to be: where each bound lies, and which rows are named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.diagnostics import suspects
from analysis.inputs.dataset import Rows, rows
from analysis.inputs.gaps import beyond_gap


def test_a_gap_counts_from_its_least_width_on() -> None:
    values = np.array([9.0, 1.0, 2.0, 5.0])
    for least, found in ((3.0, None), (4.0, None), (5.0, None)):
        below = beyond_gap(values, least)
        if least <= 4.0:
            assert below is not None and below.tolist() == [False, True, True, True], least
        else:
            assert below is found
    assert beyond_gap(np.array([1.0]), 0.0) is None and beyond_gap(np.array([]), 0.0) is None


def test_residuals_are_scored_by_a_robust_deviation() -> None:
    left, score = suspects._scored(np.array([1.0, 2.0, 3.0, 4.0, 105.0]))
    assert left.tolist() == [-2.0, -1.0, 0.0, 1.0, 102.0]
    assert score == pytest.approx(left / 1.4826)
    left, score = suspects._scored(np.array([1.0, 1.0, 1.0, 1.5]))
    assert score.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5 / suspects.FLOOR]), "no less than the floor"


def test_the_nearest_are_those_by_both_places() -> None:
    places = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [5.0, 5.0]])
    assert suspects._nearest(places, np.array([[0.9, 0.0]]), 2).tolist() == [[1, 0]]
    assert suspects._nearest(places, np.array([[0.0, 2.9], [5.0, 4.0]]), 9).tolist() == [[2, 0, 1, 3], [3, 2, 1, 0]]


def test_few_rows_in_bits_are_told_by_the_ratio() -> None:
    left = np.zeros(12)
    left[[2, 7]] = -math.log(math.log(2.0))
    places = np.stack((np.arange(12.0), np.arange(12.0)), axis=1)
    y = 1.0 + left
    _, score = suspects._scored(left)
    mask = suspects._in_bits(left, score, places, y)
    assert mask is not None and np.flatnonzero(mask).tolist() == [2, 7]
    mask = suspects._in_bits(-left, -score, places, 1.0 - left)
    assert mask is not None and np.flatnonzero(~mask).tolist() == [2, 7], "the others are in bits"
    assert suspects._in_bits(np.zeros(12), np.zeros(12), places, np.ones(12)) is None
    beside = left.copy()
    beside[[4, 9]] = 0.15, 0.16
    _, score = suspects._scored(beside)
    assert suspects._in_bits(beside, score, places, 1.0 + beside) is None, "the ends of a wide scatter"
    _, score = suspects._scored(np.where(beside == 0.16, 0.0, beside))
    assert suspects._in_bits(np.where(beside == 0.16, 0.0, beside), score, places, 1.0 + beside) is not None
    other = 2.0 * left
    assert suspects._in_bits(other, suspects._scored(other)[1], places, 1.0 + other) is None, "another ratio"


def runs(*losses: float, grow: float = 2.0) -> Rows:
    """Return runs of rising compute with these losses, each `grow` times as large as the one before."""
    size = np.array([1e7 * grow**n for n in range(len(losses))])
    keys = tuple(f"r{n}" for n in range(len(losses)))
    flops = 120 * size * size
    return rows(keys, params=size, tokens=20 * size, flops=flops, loss=np.array(losses), nominal=flops)


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [
        ((3.0, 3.0, 3.0, 3.0, 3.0, 0.1), "1 loss is at most 1 and below half of what runs near by"),
        ((3.0, 3.0, 3.0, 3.0, 0.1, 0.1), "2 losses are at most 1 and below half of what runs near by"),
        ((9.0, 9.0, 9.0, 9.0, 9.0, 1.0), "1 loss is at most 1"),
        ((3.0, 3.0, 3.0, 3.0, 3.0, 1.4), ""),
        ((0.9, 0.8, 0.7), ""),
        ((3.0, 2.9, 2.8), ""),
        ((1.2, 1.1, 1.05, 1.01, 1.005, 0.99), ""),
    ],
)
def test_shares_among_losses(losses: tuple[float, ...], wrong: str) -> None:
    found = suspects._shares(runs(*losses, grow=1.01))
    assert [check.code for check in found] == (["not_a_loss"] if wrong else [])
    assert not wrong or found[0].message.startswith(wrong)


def test_the_least_that_a_law_allows_falls_with_the_root_of_size_and_tokens() -> None:
    # Half of 3 over the root of (100 x 100) is 0.015, were the five others as small as the first.
    first = [1e7] * 5
    for loss, named in ((0.0149, True), (0.0151, False)):
        size = np.array([*first, 1e9])
        there = rows(tuple("abcdef"), params=size, tokens=20 * size, flops=120 * size * size,
                     loss=np.array([3.0] * 5 + [loss]), nominal=np.ones(6))  # fmt: skip
        assert bool(suspects._shares(there)) == named


def test_losses_that_rise_with_compute_are_accuracies() -> None:
    rising = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    (found,) = suspects._accuracies(runs(*rising))
    assert found.code == "not_a_loss"
    assert found.message.startswith(
        "the loss rises with compute (rank correlation 1.00), and every one is a share of 1"
    )
    (found,) = suspects._accuracies(runs(*(1 + 5 * one for one in rising)))
    assert found.message == "the loss rises with compute (rank correlation 1.00): this is no loss"
    assert suspects._accuracies(runs(*rising[:7])) == [], "of seven runs that may be chance"
    assert suspects._accuracies(runs(*reversed(rising))) == []
    assert suspects._accuracies(runs(*[0.5] * 8)) == []
    assert suspects._accuracies(runs(0.4, 0.1, 0.5, 0.2, 0.6, 0.3, 0.35, 0.45)) == [], "a rank correlation of 0.19"
