"""Text for people: numbers, durations, columns, and what the terminal can show."""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence

from train.spec.interrupts import deferred

WIDTH = 80
"""Columns of texts for people; wider terminals widen tables only."""
NARROWEST = 40
COMMENT, COMMAND = "    # ", "python -m "
"""As in analysis.text.terminal, which jobs do not import: an edited analysis is no other version of what they run."""
DUMB = ("dumb", "unknown")
SPELT = {"█": "#", "░": "-", "━": "-", "─": "-", "…": "~", "·": "*", "²": "2"}
"""Instead of characters that the output's encoding lacks: one each, so that columns stay where they are."""


def columns() -> int:
    """Return the columns of standard output, by COLUMNS or the terminal, no less than 40; 80 where it is neither."""
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def redraws() -> bool:
    """Return whether standard output is a terminal on which lines can be drawn anew."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in DUMB


def show(text: str, paint: Callable[[str], str] | None = None) -> None:
    """Print lines for a person: folded on a terminal that is narrower; as they are in files and pipes.

    paint: gives a line its colours, where the terminal has some.
    """
    if sys.stdout.isatty():
        lines = [part for line in text.split("\n") for part in fold(line, columns())]
        text = "\n".join(map(paint, lines) if paint is not None and colours() else lines)
    print(text, flush=True)


def colours() -> bool:
    """Return whether standard output is a terminal that shows colours, and nobody has asked for none (NO_COLOR)."""
    return redraws() and not os.environ.get("NO_COLOR")


def fold(line: str, width: int) -> list[str]:
    """Return a line in lines of so many columns. Words stay whole, and commands too: they are there to be copied."""
    if len(line) <= width:
        return [line]
    command, mark, comment = line.partition(COMMENT)
    if mark and command.strip():
        return [*fold(command, width), *fold(COMMENT + comment, width)]
    if COMMAND in line:
        return [line]
    indent = len(line) - len(line.lstrip())
    inner = " " * (indent if mark else min(indent + 4, width // 2))
    head, _, rest = line[: width + 2].rpartition("  ")
    rest += line[width + 2 :]
    if head.strip() and rest and len(inner + rest) <= width:  # between cells of a row rather than within one
        return [head.rstrip(), inner + rest]
    return textwrap.wrap(line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)


def cut(text: str, width: int = WIDTH) -> str:
    """Return a text cut to a number of columns."""
    return text if len(text) <= width else text[: width - 1] + "…"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return a line a row, its cells in columns; those of the columns `right` end where the column ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def spell_out() -> None:
    """Let standard output and error take every text: what their encoding lacks is spelt otherwise."""
    codecs.register_error("spelt", _spelt)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a stream that stands in for one may have no encoding
        if reconfigure is not None:
            with deferred():  # a stream that an exception leaves in the middle of this takes no text any more
                reconfigure(errors="spelt")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(SPELT.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def varying(overrides: Sequence[Sequence[str]]) -> set[str]:
    """Return the overrides that not all of several points have."""
    if not overrides:
        return set()
    shared = set.intersection(*(set(each) for each in overrides))
    return {override for given in overrides for override in given if override not in shared}


def duration(seconds: float) -> str:
    """Return seconds that were measured or counted: 8 s, 4 min 05 s, 2 h 10 min, 3 days 4 h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    days = whole // 86400
    if days < 1000:
        return f"{days} days {whole % 86400 // 3600} h"
    return estimate(whole)


def estimate(seconds: float) -> str:
    """Return a duration that is estimated to two digits, for more would be made up: 8 s, 2.5 h, 4.1 days, 160 years."""
    for limit, size, unit in ((100, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            value = seconds / size
            return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"
    days = seconds / 86400
    return f"{days:.3g} days" if days < 1000 else f"{float(f'{days / 365.25:.2g}'):,.0f} years"


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
    """Return the shortest text of a large or small number that reads as the same float, as configs have it: 8e+10.

    What people read of a quantity is analysis.text.numbers: 8e10.
    """
    texts = (f"{value:.{digits}e}" for digits in range(17))
    mantissa, _, exponent = next(text for text in texts if float(text) == value).partition("e")
    return f"{mantissa}e{int(exponent):+03d}"


AS_TYPED = {"True": "true", "False": "false", "None": "null"}
"""Values as Python prints them, and as they are typed."""


def recognised(overrides: Iterable[str]) -> str:
    """Return a point's overrides in one line, numbers as 8e+10 where that is shorter: what differs stands in front."""
    return " ".join(dict.fromkeys(map(_brief, overrides)))


def _brief(override: str) -> str:
    key, _, value = override.partition("=")
    if value in AS_TYPED:
        return f"{key}={AS_TYPED[value]}"
    try:
        short = scientific(float(value))
    except (ValueError, StopIteration):  # text, a list, or nan
        return override
    return f"{key}={short}" if len(short) < len(value) else override
