"""Lines for a terminal: folded where it is narrower, as they are in files and pipes. Standard library only."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import TextIO

NARROWEST = 40
HELP = 118
"""Columns of a help text in files and pipes, where a key with a long explanation is then still on one line."""
COMMAND = "python -m "
_LABEL = re.compile(r" *\S+(?: \S+)* {2,}")


def help_columns() -> int:
    """Return the columns of a help text: those of the terminal or COLUMNS, from 40 to 118; 118 where it is neither."""
    return min(HELP, max(NARROWEST, shutil.get_terminal_size((HELP, 24)).columns))


def show(text: str) -> None:
    """Print lines for a person."""
    _print(text, sys.stdout)


def complain(text: str) -> None:
    """Print what is wrong, for a person, where errors go."""
    _print(text, sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    if stream.isatty():
        width = max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)
        text = "\n".join(part for line in text.split("\n") for part in fold(line, width))
    print(text, file=stream)


def fold(line: str, width: int) -> list[str]:
    """Return a line in lines of so many columns, what follows below the text beside the line's label.

    Words stay whole, and so does a line that is a command: it is there to be copied.
    """
    if len(line) <= width or line.lstrip().startswith(COMMAND):
        return [line]
    label = _LABEL.match(line)
    indent = label.end() if label is not None else len(line) - len(line.lstrip()) + 4
    inner = " " * (indent if indent <= width // 2 else 4)
    return textwrap.wrap(line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)
