"""Numbers as people say them, at the edges between two units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.text import counted, duration, estimate, human, recognised, scientific


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0 s"), (0, "0 s"), (8.4, "8 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (60, "1 min 00 s"),
        (245, "4 min 05 s"), (3599, "59 min 59 s"), (3600, "1 h 00 min"), (7860, "2 h 11 min"),
        (48 * 3600 - 1, "47 h 59 min"), (48 * 3600, "2 days 0 h"), (3 * 86400 + 4 * 3600 + 3599, "3 days 4 h"),
        (1000 * 86400 - 1, "999 days 23 h"), (1000 * 86400, "3 years"),
    ],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.04 s"), (8.25, "8.2 s"), (9.9, "9.9 s"), (10, "10 s"), (99.4, "99 s"), (100, "1.7 min"),
        (600, "10 min"), (5399, "90 min"), (5400, "1.5 h"), (36000, "10 h"), (19621.8, "5.5 h"), (172799, "48 h"),
        (172800, "2 days"), (864000, "10 days"), (86400 * 123.4, "123 days"),
        (86400 * 999, "999 days"), (86400 * 1000, "3 years"), (86400 * 365.25 * 164, "160 years"),
        (86400 * 365.25 * 12_345, "12,000 years"),
    ],
)  # fmt: skip
def test_an_estimate_has_two_digits(seconds: float, said: str) -> None:
    assert estimate(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0"), (7, "7"), (999, "999"), (999.6, "1.00K"), (1000, "1.00K"), (12_345, "12.3K"), (999_400, "999K"),
        (999_500, "1.00M"), (999_500_000, "1.00B"), (999_500_000_000, "1.00T"), (999_600, "1.00M"),
        (123e6, "123M"), (1.5e9, "1.50B"), (2e12, "2.00T"), (5e14, "500T"),
    ],
)  # fmt: skip
def test_a_count_has_three_digits_and_its_letter(count: float, said: str) -> None:
    assert human(count) == said


@pytest.mark.parametrize(("count", "said"), [(0, "0 points"), (1, "1 point"), (2, "2 points"), (1200, "1,200 points")])
def test_what_is_counted_is_one_or_several(count: int, said: str) -> None:
    assert counted(count, "point") == said


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_scientific_number_reads_as_itself(value: float) -> None:
    assert float(scientific(value)) == value


@pytest.mark.parametrize(
    ("value", "said"),
    [(8e10, "8e+10"), (2.5e-5, "2.5e-05"), (1.0, "1e+00"), (1.0 / 3.0, "3.333333333333333e-01"), (1e100, "1e+100")],
)
def test_a_scientific_number_is_as_short_as_it_can_be(value: float, said: str) -> None:
    assert scientific(value) == said


def test_overrides_are_said_the_shorter_way() -> None:
    given_ones = ["a=80000000000", "b=64", "c=true", "d=[1,2]", "e=nan", "f=100000", "g=10000", "h"]
    assert recognised(given_ones) == "a=8e+10 b=64 c=true d=[1,2] e=nan f=1e+05 g=10000 h"
