"""Keys of the schema as lines of a help text: default, type, what it is. No Hydra: help must be quick."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from analysis.text.terminal import help_columns
from study.config.schema import Key, Section, sections

WIDE = 100
"""Columns from which the words about a key stand beside it; on a narrower terminal they stand below it."""
INDENT, BELOW = 58, 8
"""Where the words about a key begin [columns]: beside it, and below it."""


def lines_of(names: Sequence[str]) -> list[str]:
    """Return the lines of these sections, whole (model), or of some of their keys (data.vocab_size)."""
    found: list[str] = []
    for part in sections():
        keys = part.keys if part.path in names else tuple(key for key in part.keys if key.path in names)
        if keys:
            found += section_lines(replace(part, keys=keys))
    return found


def section_lines(part: Section) -> Iterator[str]:
    """Yield a section: an empty line, what it is about, its keys."""
    yield ""
    if part.path:
        yield f"  {part.path}: {part.help}"
    for key in part.keys:
        yield from key_lines(key)


def key_lines(key: Key) -> Iterator[str]:
    """Yield a key in a line, or in more where it is long or the terminal narrow."""
    width = help_columns()
    indent = INDENT if width >= WIDE else BELOW
    value = f"{key.path}={default_text(key.default)}"
    kind = "|".join(key.choices) if key.choices else type_name(key.kind)
    lead = f"    {value:<38} {kind:<14} "
    if len(lead) > indent:
        # What is longer than its column has lines of its own, so that the words stand below each other.
        further = " " * min(43, width // 2)
        yield from textwrap.wrap(
            lead.strip().replace("|", " | "), width, initial_indent="    ", subsequent_indent=further
        )
        lead = ""
    for line in textwrap.wrap(key.help, width - indent, break_on_hyphens=False) or [""]:
        yield f"{lead:<{indent}}{line}"
        lead = ""


def type_name(kind: Any) -> str:
    """Return a type as people read it: int, float, [float, …]."""
    name = str(kind) if not isinstance(kind, type) or hasattr(kind, "__args__") else kind.__name__
    name = name.replace(" | None", "").replace("tuple[", "[").replace(", ...]", ", …]")
    return re.sub(r"dict\[str, [\w.]+\]|\b\w[\w.]*\.[A-Z]\w*", "{…}", name)


def default_text(value: Any) -> str:
    """Return a default as it would be typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(map(default_text, value))}]" if isinstance(value, tuple) else str(value)
