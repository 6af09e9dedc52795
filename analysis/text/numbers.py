"""Numbers as people read them: 1.2M, 3.4e12 FLOPs, 0.41 to 0.53. Standard library only, so that it imports at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

MISSING = "–"
DUST = 1e-12
"""What is left of 0 by the rounding of sums, beside an end that is far above it."""
ASCII = str.maketrans({"×": "x", "–": "-", "−": "-"})
"""For terminals without the signs."""
_POWER = re.compile(r"(?<![\w./=:])(\d+(?:\.\d+)?)e[+-]?\d+(?!\w|\.\d)")
_MANTISSA = re.compile(r"(-?\d+(?:\.\d+)?)(e.*)")
_UNIT = re.compile(r"(?<=\d) (?=%|FLOPs\b)")
_MINUS = re.compile(r"(?<![^\s(])-(?=\d)")
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_SUFFIXED = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))\s*([KMBT])", re.IGNORECASE)


def finite(value: object) -> float | None:
    """Return the value as a finite float, or None for anything else (None, NaN, infinity, text)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # of an integer
        return None
    return number if math.isfinite(number) else None


def settled(value: object) -> object:
    """Return 0 for what rounding has left of it, as of the slope of a level line; every other value as it is."""
    x = finite(value)
    return 0.0 if x is not None and abs(x) < DUST else value


def number(value: object, digits: int = 3) -> str:
    """Return a plain number with so many significant digits: 0.0123, 1.81, 478, 1.2e-5."""
    x = finite(value)
    if x is None:
        return MISSING
    if x == 0:
        return "0"
    exponent = _exponent(x, digits)
    if exponent < -4 or exponent > 5:
        return scientific(x, digits)
    return f"{_rounded(x, digits):.{max(0, digits - 1 - exponent)}f}"


def count(value: object, digits: int = 3) -> str:
    """Return a count with a short-scale suffix: 940, 1.2K, 1.2M, 3.4B, 5.6T; beyond that 5.6e16."""
    text, suffix = _scaled(value, digits)
    return _trim(text) + suffix


def amount(value: object, digits: int = 3) -> str:
    """Return a fitted or measured count with all its digits, so that columns align: 34.0B, 1.20M, 16.0K."""
    return "".join(_scaled(value, digits))


def read(text: str) -> float:
    """Return the number that a text writes, as Python does or as :func:`count` does: 3e12, 1.2M, 34b; NaN for none.

    >>> read(" 1.3B"), read("300 m"), read("2e9 "), read("8 bits")
    (1300000000.0, 300000000.0, 2000000000.0, nan)
    """
    found = _SUFFIXED.fullmatch(text.strip())
    if found is not None:
        scale = next(scale for scale, suffix in _SUFFIXES if suffix == found[2].upper())
        return float(f"{float(found[1]) * scale:.15g}")  # 70.3M is 70300000, not the float beside it
    try:
        return float(text)
    except ValueError:
        return math.nan


def counted(value: int, noun: str) -> str:
    """Return so many of something: 1 run, 5 runs, 3 losses."""
    return f"{value} {noun}" if value == 1 else f"{value} {noun}{'es' if noun.endswith('s') else 's'}"


def there_are(value: int, noun: str) -> str:
    """Return the same with its verb: 1 run is, 5 runs are."""
    return f"{counted(value, noun)} {'is' if value == 1 else 'are'}"


SHOWN = 8
"""Of more rows than this a sentence names the first."""


def listed(names: Iterable[str], separator: str = ", ", most: int = SHOWN) -> str:
    """Return the first names in a row, with an ellipsis where there are more."""
    each = list(names)
    return separator.join([*each[:most], "..."] if len(each) > most else each)


def scientific(value: object, digits: int = 2) -> str:
    """Return mantissa and exponent: 3.4e12, 1e18, 2.5e-5."""
    x = finite(value)
    if x is None:
        return MISSING
    mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
    return f"{_trim(mantissa)}e{int(exponent)}"


def brief(value: object, digits: int = 3) -> str:
    """Return a number with no more digits than it needs: 12, 0.035, 940, 2.53e11."""
    x = finite(value)
    if x is None:
        return MISSING
    mantissa, mark, exponent = f"{x:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa


def flops(value: object, digits: int = 2) -> str:
    """Return compute with its unit: 3.4e12 FLOPs."""
    return MISSING if finite(value) is None else f"{scientific(value, digits)} FLOPs"


def power(value: object, digits: int = 2) -> str:
    """Return a number as a product with a power of ten for labels: 3.4×10¹², 10¹⁸."""
    x = finite(value)
    if x is None:
        return MISSING
    mantissa, exponent = scientific(x, digits).split("e")
    ten = "10" + exponent.translate(_SUPERSCRIPTS)
    return ten if mantissa == "1" else f"{mantissa}×{ten}"


def percent(value: object, digits: int = 2) -> str:
    """Return a share as per cent: 0.0123 is 1.2 %."""
    x = finite(value)
    return MISSING if x is None else f"{number(100 * x, digits)} %"


def factor(value: object) -> str:
    """Return a ratio: 10×, 2.5×."""
    x = finite(value)
    return MISSING if x is None else f"{_trim(number(x, 2 if 2 <= abs(x) < 100 else 3))}×"


def labelled(name: str, kind: str) -> str:
    """Return a quantity with the kind it is counted in, where that is known: parameters N [matmul]."""
    return name if kind in ("", "given") else f"{name} [{kind}]"


SIDES = {"upper": "at most", "lower": "at least"}
"""What a limit is called that bounds a quantity on one side."""


def one_sided(side: object, limit: object, show: Callable[[object], str] = number) -> str:
    """Return "at most 2.41" of an upper limit, "at least" of a lower one; "" where there is no side or no limit."""
    word, bound = SIDES.get(str(side)), finite(limit)
    return "" if word is None or bound is None else f"{word} {show(bound)}"


def interval(bounds: object, show: Callable[[object], str] = number) -> str:
    """Return "low to high", both ends with as many digits: 8.19B to 10.0B.

    A missing or infinite end becomes "at least" or "at most", what rounding has left of 0 becomes 0.
    """
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        return MISSING
    low, high = finite(bounds[0]), finite(bounds[1])
    if low is None and high is None:
        return MISSING
    if high is None:
        return one_sided("lower", low, show)
    if low is None:
        return one_sided("upper", high, show)
    if max(abs(low), abs(high)) > DUST * 1e9:
        low, high = (0.0 if abs(end) < DUST else end for end in (low, high))
    return " to ".join(_alike(show(low), show(high)))


def signed(value: object, decimals: int = 2) -> str:
    """Return a share as per cent with its sign: +1.26 %, -0.71 %; what rounds to 0 has none."""
    x = finite(value)
    if x is None:
        return MISSING
    text = f"{100 * x:+.{decimals}f}"
    return f"{text.lstrip('+-') if not text.strip('+-0.') else text} %"


def moment(created: str) -> str:
    """Return an ISO time as it is read: 2026-11-24T17:22:16+00:00 is 2026-11-24 17:22 UTC; other text as it is."""
    day, letter, rest = created.partition("T")
    known = letter and len(day) == 10 and rest[2:3] == ":" and rest[8:] in ("Z", "+00:00")
    return f"{day} {rest[:5]} UTC" if known else created


def typeset(text: str) -> str:
    """Return text for a page or a figure: powers of ten as on axes, true minus signs, units that stay with numbers.

    What is typed (budget=1e13) and names stay as they are.

    >>> typeset("at 3e12 FLOPs, +1.2 % or -0.5 to 2.5e-7; budget=3e12")
    'at 3×10¹²\xa0FLOPs, +1.2\xa0% or −0.5 to 2.5×10⁻⁷; budget=3e12'
    """
    text = _UNIT.sub("\xa0", text)
    text = _POWER.sub(lambda found: power(float(found[0]), max(2, len(found[1].replace(".", "")))), text)
    return _MINUS.sub("−", text)


def _scaled(value: object, digits: int) -> tuple[str, str]:
    """Return a count's number and its suffix."""
    x = finite(value)
    if x is None:
        return MISSING, ""
    x = _rounded(x, digits)
    if abs(x) >= 1e15:
        return scientific(x, digits), ""
    for scale, suffix in _SUFFIXES:
        if abs(x) >= scale:
            return number(x / scale, digits), suffix
    return number(x, digits), ""


def _rounded(x: float, digits: int) -> float:
    return float(f"{x:.{digits - 1}e}")


def _exponent(x: float, digits: int) -> int:
    return int(f"{x:.{digits - 1}e}".partition("e")[2])


def _alike(*ends: str) -> list[str]:
    """Return texts, where all have a power of ten, with as many decimals: 2.5e6 and 1e7 as 2.5e6 and 1.0e7."""
    parts = [found for end in ends if (found := _MANTISSA.match(end))]
    if len(parts) < len(ends):
        return list(ends)
    decimals = max(len(part[1].partition(".")[2]) for part in parts)
    return [f"{float(part[1]):.{decimals}f}{part[2]}" for part in parts]


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
