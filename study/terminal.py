"""What can be shown where the output goes: how many columns, which characters, and whether lines can be drawn anew."""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence

WIDTH = 80
"""Columns of texts for people; wider terminals widen tables only."""
NARROWEST = 40
COMMENT, COMMAND = "    # ", "python -m "
DUMB = ("dumb", "unknown")
SPELT = {"█": "#", "░": "-", "━": "-", "─": "-", "…": "~", "·": "*", "²": "2"}
"""Instead of characters that the output's encoding lacks: one each, so that columns stay where they are."""


def columns() -> int:
    """Return the columns of standard output, by COLUMNS or the terminal, no less than 40; 80 where it is neither."""
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def redraws() -> bool:
    """Return whether standard output is a terminal on which lines can be drawn anew."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in DUMB


def show(text: str) -> None:
    """Print lines for a person: folded on a terminal that is narrower; as they are in files and pipes."""
    if sys.stdout.isatty():
        text = "\n".join(part for line in text.split("\n") for part in fold(line, columns()))
    print(text, flush=True)


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
    """Return a text in so many columns, its end left out where there is too much of it."""
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
            reconfigure(errors="spelt")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(SPELT.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
