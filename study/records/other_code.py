"""Points whose frozen config says what this code does not know: another version made them."""

from __future__ import annotations

from collections.abc import Iterable

from study.records.point import Point
from study.text import counted

NUMBERS = b"0123456789.+-"
"""What of a config cannot be unknown."""


def lines(points: Iterable[Point]) -> list[str]:
    """Return a line for each thing that points say and this code does not know; none where it knows everything.

    Points that differ by numbers alone are read once: a study may have thousands.
    """
    said: dict[bytes, str] = {}
    found: dict[str, list[str]] = {}
    last, why = b"", ""
    for point in points:
        words = point.text.encode().translate(None, NUMBERS)
        if words != last:  # to compare takes a fraction of looking it up, and most say what the one before says
            if words not in said:
                said[words] = _why(point)
            last, why = words, said[words]
        if why:
            found.setdefault(why, []).append(point.key)
    return [f"{_named(keys)}: {why}" for why, keys in found.items()]


def _named(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {counted(len(keys) - 1, 'point')} more"


def _why(point: Point) -> str:
    try:
        _ = point.config
    except ValueError as error:
        return str(error.__cause__ or error)  # without the point, which the line names already
    return ""
