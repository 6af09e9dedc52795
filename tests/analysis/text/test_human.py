from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.text import numbers

UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


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
        (1234, "1.23K"),
        (1.2e6, "1.2M"),
        (999_999, "1M"),
        (3.4e9, "3.4B"),
        (5.6e12, "5.6T"),
        (7e16, "7e16"),
    ],
)
def test_count(value: float, text: str) -> None:
    assert numbers.count(value) == text


def test_a_number_is_as_brief_as_it_can_be() -> None:
    shown = [numbers.brief(v) for v in (12, 0.035, 940.0, 8e10, 2.534e11, -1e-8, 0)]
    assert shown == ["12", "0.035", "940", "8e10", "2.53e11", "-1e-8", "0"]
    assert numbers.brief(1.81234, 4) == "1.812"


def test_labels_with_units() -> None:
    assert numbers.flops(3.4e12) == "3.4e12 FLOPs"
    assert numbers.power(1e18) == "10¹⁸"
    assert numbers.power(3.4e12) == "3.4×10¹²"
    assert numbers.percent(0.0123) == "1.2 %"
    assert numbers.factor(10) == "10×"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "12", True, 10**400])
def test_what_is_no_number_is_a_dash_everywhere(value: object) -> None:
    shows = (
        numbers.number,
        numbers.count,
        numbers.flops,
        numbers.brief,
        numbers.power,
        numbers.percent,
        numbers.factor,
    )
    assert [show(value) for show in shows] == [numbers.MISSING] * len(shows)


def test_intervals() -> None:
    assert numbers.interval((1e6, 2e7), numbers.amount) == "1.00M to 20.0M"
    assert numbers.interval((8.19e9, 1e10), numbers.amount) == "8.19B to 10.0B", "both ends have as many digits"
    assert numbers.interval((9.5e5, 1e6)) == "950000 to 1e6"
    assert numbers.interval((2.5e6, 1e7)) == "2.5e6 to 1.0e7"
    assert numbers.interval((2.53e12, 1e13), numbers.scientific) == "2.5e12 to 1.0e13"
    assert numbers.interval((1, math.inf)) == "at least 1.00"
    assert numbers.interval((None, 3)) == "at most 3.00"
    assert numbers.interval((-8.96e-14, 0.878)) == "0 to 0.878", "what rounding leaves of 0"
    assert numbers.interval((1e-14, 3e-14)) == "1e-14 to 3e-14"
    assert numbers.interval(None) == numbers.interval("ab") == numbers.interval((None, None)) == numbers.MISSING


def test_amounts_keep_their_digits_so_that_columns_align() -> None:
    shown = [numbers.amount(v) for v in (34e9, 16020, 999.6, 12.3, 1.2e6, 2e16, None)]
    assert shown == ["34.0B", "16.0K", "1.00K", "12.3", "1.20M", "2e16", numbers.MISSING]


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert [numbers.signed(v) for v in (0.01264, -0.0071, -2e-5, 0.0, None)] == [
        "+1.26 %", "-0.71 %", "0.00 %", "0.00 %", numbers.MISSING,
    ]  # fmt: skip


def test_a_page_shows_powers_as_its_axes_do_and_leaves_what_is_typed() -> None:
    shown = numbers.typeset("-1.5 % at 9.5e11 FLOPs (1e18), -0.2 to 1.4, 2026-11-24, run-3, budget=1e22, E:1e-3, 3e-5.")
    assert shown == (
        "−1.5\xa0% at 9.5×10¹¹\xa0FLOPs (10¹⁸), −0.2 to 1.4, 2026-11-24, run-3, budget=1e22, E:1e-3, 3×10⁻⁵."
    )


def test_times_are_read_without_their_seconds() -> None:
    assert numbers.moment("2026-11-24T17:22:16+00:00") == "2026-11-24 17:22 UTC"
    assert [numbers.moment(text) for text in ("", "yesterday", "2026-11-24T17:22:16+02:00")] == [
        "", "yesterday", "2026-11-24T17:22:16+02:00",
    ]  # fmt: skip


@given(st.floats(min_value=1e-3, max_value=9e14))
def test_counts_read_back_within_their_rounding(value: float) -> None:
    text = numbers.count(value, 3)
    read = float(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else float(text)
    assert read == pytest.approx(value, rel=0.0051)


def test_what_rounding_leaves_of_zero_is_zero() -> None:
    assert numbers.settled(-6.7e-15) == 0.0 and numbers.settled(1e-6) == 1e-6 and numbers.settled(None) is None
