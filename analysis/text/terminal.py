"""Lines for a terminal: folded where it is narrower, as they are in files and pipes. Standard library only."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

NARROWEST = 40
_LABEL = re.compile(r" *\S+(?: \S+)* {2,}")


def show(text: str) -> None:
    """Print lines for a person."""
    if sys.stdout.isatty():
        width = max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)
        text = "\n".join(part for line in text.split("\n") for part in fold(line, width))
    print(text)


def fold(line: str, width: int) -> list[str]:
    """Return a line in lines of so many columns, what follows below the text beside the line's label; words whole."""
    if len(line) <= width:
        return [line]
    label = _LABEL.match(line)
    indent = label.end() if label is not None else len(line) - len(line.lstrip()) + 4
    inner = " " * (indent if indent <= width // 2 else 4)
    return textwrap.wrap(line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)
