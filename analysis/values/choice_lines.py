"""The lines of the sensitivity table: which of them say what other choices of the analysis do, beyond chance."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.values.study_result import Choice


def telling(lines: Iterable[Choice]) -> list[Choice]:
    """Return the lines with a value that differ from the first, the fit itself, by more than fewer rows do by chance.

    Their range is what page, terminal and findings state. The first line is always among them.
    """
    known = [line for line in lines if line.value is not None]
    return [line for line in known if _apart_beyond_chance(line, known[0])]


def _apart_beyond_chance(line: Choice, whole: Choice) -> bool:
    """Whether a choice differs from the fit of all rows by more than leaving rows out does by chance.

    The variance of the difference between a fit of some rows and a fit of all is the difference of their variances
    (Hausman, 1978, for efficient estimates). Choices that keep all rows, or have no interval, always count.
    """
    ends = line.low, line.high, whole.low, whole.high
    if line.rows >= whole.rows or line.value is None or whole.value is None or None in ends:
        return True
    low, high, whole_low, whole_high = (end for end in ends if end is not None)
    shift = line.value - whole.value
    own, shared = (
        (line.value - low, whole_high - whole.value) if shift > 0 else (high - line.value, whole.value - whole_low)
    )
    return shift**2 > own**2 - shared**2
