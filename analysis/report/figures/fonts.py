"""What a PDF takes of a font: what draws its letters, not what lays text out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LAYOUT = ("GSUB", "GPOS", "GDEF", "BASE", "JSTF", "MATH", "kern")
"""Tables that say where letters go; a PDF says so itself, and readers ignore them (ISO 32000-1, 9.9)."""


@contextmanager
def only_outlines() -> Iterator[None]:
    """Leave LAYOUT out of the fonts of PDFs that matplotlib writes meanwhile.

    Reading them and cutting them down takes longer than all else about a font.
    """
    from fontTools import subset

    load = subset.load_font

    def without_layout(*given: Any, **options: Any) -> Any:
        font = load(*given, **options)
        for table in filter(font.__contains__, LAYOUT):
            del font[table]
        return font

    subset.load_font = without_layout
    try:
        yield
    finally:
        subset.load_font = load
