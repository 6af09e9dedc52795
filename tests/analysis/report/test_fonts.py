"""The fonts in a PDF draw every letter as the font itself does, and carry nothing else."""

from __future__ import annotations

import re
import zlib
from io import BytesIO

from fontTools.ttLib import TTFont
from matplotlib import font_manager
from matplotlib.axes import Axes

from analysis.report.figures import canvas, fonts

WORDS = "Loss 2.841 ± 0.002, N* = 113k, fi ffl AVA ∝ C½ é"


def written(ax: Axes) -> Axes:
    ax.set_title(WORDS)
    return ax


def outline(font: TTFont, name: str) -> tuple[object, ...]:
    """Return the points of a glyph, where its contours end, and how wide it is."""
    points, ends, _ = font["glyf"][name].getCoordinates(font["glyf"])
    return list(points), list(ends), font["hmtx"][name]


def test_letters_are_drawn_as_in_the_font_and_layout_is_left_out() -> None:
    content = canvas.Sheet([canvas.Panel("words", "Words", written)]).pdf()
    streams = re.findall(rb"/Length1.*?stream\r?\n(.*?)endstream", content, flags=re.DOTALL)
    assert streams
    source = TTFont(font_manager.findfont("DejaVu Sans"))
    letters = {source.getBestCmap()[ord(letter)] for letter in WORDS.replace("fi", "").replace("ffl", "")}
    kept: set[str] = set()
    for stream in streams:
        font = TTFont(BytesIO(zlib.decompressobj().decompress(stream)))
        assert set(font.keys()).isdisjoint(fonts.LAYOUT)
        drawn = letters & set(font.getGlyphOrder())
        for name in drawn:
            assert outline(font, name) == outline(source, name), name
        kept |= drawn
    assert kept == letters


def test_other_pdfs_of_the_process_are_left_alone() -> None:
    from fontTools import subset

    load = subset.load_font
    with fonts.only_outlines():
        assert subset.load_font is not load
    assert subset.load_font is load
