"""Which lines of the sensitivity table say more than fewer rows do by chance."""

from __future__ import annotations

from analysis.values.choice_lines import telling
from analysis.values.study_result import Choice


def line(value: float | None, rows: int = 20, ends: tuple[float, float] | None = None) -> Choice:
    low, high = ends or (None, None)
    return Choice("rows", "x", "a", value, low, high, rows)


def test_lines_are_held_against_the_fit_itself() -> None:
    whole = line(0.50, ends=(0.46, 0.54))
    near, far = line(0.529, 15, (0.479, 0.579)), line(0.531, 15, (0.481, 0.581))
    assert telling([whole, near, far]) == [whole, far], "0.03 is the root of 0.05 squared less 0.04 squared"
    low, lower = line(0.471, 15, (0.421, 0.521)), line(0.469, 15, (0.419, 0.519))
    assert telling([whole, low, lower]) == [whole, lower]


def test_lines_of_all_rows_and_without_an_interval_always_count() -> None:
    whole, same, bare, none = line(0.50, ends=(0.4, 0.6)), line(0.501), line(0.502, 10), line(None)
    assert telling([whole, same, none, bare]) == [whole, same, bare] and telling([none]) == []
