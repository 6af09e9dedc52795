"""Numbers as people say them: durations, estimates of durations, counts."""

from __future__ import annotations

from collections.abc import Iterable


def duration(seconds: float) -> str:
    """Return seconds that were measured or counted: 8 s, 4 min 05 s, 2 h 10 min, 3 d 4 h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def estimate(seconds: float) -> str:
    """Return a duration that is estimated to two digits, for more would be made up: 8 s, 2.5 h, 4.1 d, 160 years."""
    for limit, size, unit in ((100, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            value = seconds / size
            return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
    days = seconds / 86400
    return f"{days:.3g} d" if days < 1000 else f"{float(f'{days / 365.25:.2g}'):,.0f} years"


def human(count: float) -> str:
    """Return a count with three digits and K, M, B or T."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size * 0.9995:
            return f"{count / size:#.3g}".rstrip(".") + unit
    return f"{count:.3g}"


def percent(share: float, decimals: int = 0) -> str:
    """Return a share as per cent: 40 %, or 3.7 % with a decimal."""
    return f"{100 * share:.{decimals}f} %"


def counted(count: int, word: str) -> str:
    """Return a count with what is counted: 1 point, 1,200 points."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def scientific(value: float) -> str:
    """Return the shortest text of a large or small number that reads as the same float: 8e+10, 2.5e-05."""
    texts = (f"{value:.{digits}e}" for digits in range(17))
    mantissa, _, exponent = next(text for text in texts if float(text) == value).partition("e")
    return f"{mantissa}e{int(exponent):+03d}"


def recognised(overrides: Iterable[str]) -> str:
    """Return a point's overrides in one line, numbers as 8e+10 where that is shorter: what differs stands in front."""
    return " ".join(map(_brief, overrides))


def _brief(override: str) -> str:
    key, _, value = override.partition("=")
    try:
        short = scientific(float(value))
    except (ValueError, StopIteration):  # text, a list, or nan
        return override
    return f"{key}={short}" if len(short) < len(value) else override
