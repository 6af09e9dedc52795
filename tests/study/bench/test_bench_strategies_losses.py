"""Losses of two strategies beside each other: their last ones, what rounding allows, and whether the run was steady."""

from __future__ import annotations

import math

import pytest

from study.bench.strategies_losses import apart, bound, last, most_apart, rise


def test_the_bound_of_a_format_is_its_unit_roundoff() -> None:
    digits = {"bf16": 8, "fp16": 11, "fp8": 4}  # of a significand, the first one not stored
    assert {name: bound(name) for name in digits} == {name: 2.0**-count for name, count in digits.items()}


def test_means_of_the_last_quarter_are_compared() -> None:
    there = [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.1, 3.9]
    here = [10.0, 9.5, 8.0, 7.0, 6.0, 5.0, 3.9, 4.1]
    assert list(last(there)) == [4.1, 3.9] and list(last([1.0])) == [1.0]
    assert apart(here, there) == 0, "a difference that comes and goes says nothing"
    assert most_apart(here, there) == pytest.approx(0.5 / 9)
    assert apart([*here[:6], 4.4, 4.4], there) == pytest.approx(0.1)
    assert apart([*here[:7], math.nan], there) == math.inf == most_apart([*here[:7], math.nan], there)


def test_a_run_is_steady_while_its_loss_rises_by_less_than_batches_differ() -> None:
    assert rise([10.0, 9.0, 9.1, 8.0]) is None and rise([10.0]) is None
    assert rise([10.0, 8.0, 9.0, 8.8, 9.5, 7.0]) == (3, 0.125)
