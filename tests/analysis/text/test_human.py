from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.text import numbers

UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.81722, "1.82"), (477.83, "478"), (2143.4, "2140"), (0.0123, "0.0123"), (1e-7, "1e-7"), (1e6, "1e6")],
)
def test_number(value: float, text: str) -> None:
    assert numbers.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (940, "940"),
        (1234, "1.23k"),
        (1.2e6, "1.2M"),
        (999_999, "1M"),
        (3.4e9, "3.4B"),
        (5.6e12, "5.6T"),
        (7e16, "7e16"),
    ],
)
def test_count(value: float, text: str) -> None:
    assert numbers.count(value) == text


def test_labels_with_units() -> None:
    assert numbers.flops(3.4e12) == "3.4e12 FLOPs"
    assert numbers.power(1e18) == "10¹⁸"
    assert numbers.power(3.4e12) == "3.4×10¹²"
    assert numbers.percent(0.0123) == "1.2 %"
    assert numbers.factor(10) == "10×"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "12", True])
def test_what_is_no_number_is_a_dash_everywhere(value: object) -> None:
    shows = (
        numbers.number,
        numbers.count,
        numbers.flops,
        numbers.power,
        numbers.percent,
        numbers.factor,
    )
    assert [show(value) for show in shows] == [numbers.MISSING] * len(shows)


def test_intervals() -> None:
    assert numbers.interval((1e6, 2e7), numbers.count) == "1M to 20M"
    assert numbers.interval((1, math.inf)) == "at least 1.00"
    assert numbers.interval((None, 3)) == "at most 3.00"
    assert numbers.interval((-8.96e-14, 0.878)) == "0 to 0.878", "what rounding leaves of 0"
    assert numbers.interval((1e-14, 3e-14)) == "1e-14 to 3e-14"
    assert numbers.interval(None) == numbers.interval("ab") == numbers.interval((None, None)) == numbers.MISSING


def test_an_estimate_has_no_more_digits_than_its_interval_supports() -> None:
    assert numbers.estimate(0.32614, (0.2211, 0.4512)) == ("0.33", "0.22 to 0.45")
    assert numbers.estimate(45.12, (12.2, 310.4)) == ("45", "12 to 310")
    assert numbers.estimate(478.3, (7.2, 72222.0)) == ("478", "7 to 72200"), "no digits beyond the third"
    assert numbers.estimate(0.5, None) == ("0.500", numbers.MISSING)
    assert numbers.estimate(None, (1.0, 2.0))[0] == numbers.MISSING


@given(st.floats(min_value=1e-3, max_value=9e14))
def test_counts_read_back_within_their_rounding(value: float) -> None:
    text = numbers.count(value, 3)
    read = float(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else float(text)
    assert read == pytest.approx(value, rel=0.0051)
