"""From panels to files: what a figure is, and how it becomes SVG text, PNG bytes and CSV rows."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis.report.figures import fonts, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 4.6
HEIGHT = 4.1
SCREEN, COLUMN, PAGE = "screen", "column", "page"
SIZES: Mapping[str, float | None] = {SCREEN: None, COLUMN: 3.35, PAGE: 7.0}
"""How wide a sheet is [inches]: on a screen by its panels, in print one column of a page or all of it."""
LEAST_TEXT = 0.68
"""Text in print is never smaller than this share of that on a screen, of 10 and 9 points."""
_COLOUR = re.compile(r"(?<![&\w])#[0-9a-f]{6}\b")
_FAINT = re.compile(r"(?<![-\w])((?:fill-)?opacity: )(0\.[0-4]\d*)")
"""The opacity of bands and of crowds of dots, which a dark page raises."""
LIFT = 1.8
_NAMED = re.compile(f'<g id="{style.HOVER}([^"]*)">')
_DOT = re.compile(r"<use [^>]*/>")


@dataclass(frozen=True)
class Panel:
    """One pair of axes: `draw` fills and returns the axes it is given; `height` in inches, `alt` is read aloud."""

    name: str
    alt: str
    draw: Callable[[Axes], Axes]
    height: float = HEIGHT


@dataclass(frozen=True)
class Table:
    """What a figure plots, as columns and rows, for machines."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Figure:
    """Panels that belong together, with the sentence that says what to see in them and their data.

    `across` panels stand side by side on a sheet; one that is not `shown` is a file only, not on the page.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    table: Table
    across: int = 2
    shown: bool = True

    @cached_property
    def sheet(self) -> Sheet:
        """All panels on one sheet, as on a screen."""
        return Sheet(self.panels, across=self.across)

    def sized(self, size: str) -> Sheet:
        """Return all panels on a sheet of one of SIZES."""
        return self.sheet if size == SCREEN else Sheet(self.panels, size, self.across)

    def inline(self) -> tuple[str, ...]:
        """Return every panel as an SVG element of its own; the only one of a figure is on its sheet already."""
        sheets = (self.sheet,) if len(self.panels) == 1 else map(Sheet, zip(self.panels))
        return tuple(
            inline(sheet, f"{self.name}-{panel.name}", panel.alt)
            for sheet, panel in zip(sheets, self.panels, strict=True)
        )


class Sheet:
    """Panels side by side, drawn and laid out once however often they are saved.

    `size` is one of SIZES: as on a screen, or in print, in one column of a page or over all of it; text is then about
    7 points large. The first save lays the panels out, by its format's own widths of text.
    """

    def __init__(self, panels: Sequence[Panel], size: str = SCREEN, across: int = 2) -> None:
        wide, across = SIZES[size], min(across, len(panels))
        if size == COLUMN:
            across = 1
        scale = 1.0 if wide is None else min(wide / (across * WIDTH), 1.0)
        self.text = max(scale, LEAST_TEXT)
        self._dots = 160 if wide is None else 300
        with _settings(scale=self.text):
            self._canvas = compose(panels, across, (scale, self.text))
            _thin(self._canvas, self.text)

    def svg(self, name: str, transparent: bool) -> str:
        """Return one SVG document, the same text for the same data."""
        buffer = io.StringIO()
        self._save(buffer, name, transparent, format="svg", metadata={"Date": None, "Creator": None})
        return _named_dots(buffer.getvalue())

    def png(self, dpi: int | None = None) -> bytes:
        """Return a PNG image on a white ground: 160 dots an inch on a screen, 300 in print."""
        buffer = io.BytesIO()
        self._save(buffer, "png", False, format="png", dpi=dpi or self._dots, metadata={"Software": None})
        return buffer.getvalue()

    def pdf(self) -> bytes:
        """Return a PDF of one page as large as the sheet, the same bytes for the same data."""
        buffer = io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Producer", "CreationDate"))
        with fonts.only_outlines():
            self._save(buffer, "pdf", False, format="pdf", metadata=nothing)
        return buffer.getvalue()

    def _save(self, target: Any, salt: str, transparent: bool, **options: Any) -> None:
        from analysis.report.figures.layout import lay_out

        with _settings(salt, self.text):
            self._canvas.patch.set_visible(not transparent)
            lay_out(self._canvas, **options)
            self._canvas.savefig(target, facecolor=style.PAPER, **options)


def _settings(salt: str = "", scale: float = 1.0) -> AbstractContextManager[None]:
    import matplotlib

    settings: Any = {**style.rc(scale), "svg.hashsalt": salt}
    return matplotlib.rc_context(settings)


def _thin(canvas: Canvas, scale: float) -> None:
    """Make lines and dots as much finer as text is smaller."""
    from matplotlib.lines import Line2D

    if scale == 1.0:
        return
    for line in canvas.findobj(Line2D):
        line.set_linewidth(line.get_linewidth() * scale)
        line.set_markersize(line.get_markersize() * scale)
        line.set_markeredgewidth(line.get_markeredgewidth() * scale)


def csv_text(table: Table) -> str:
    """Return the plotted data as CSV with full precision; missing values are empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([["" if v is None or v != v else v for v in row] for row in table.rows])  # noqa: PLR0124
    return buffer.getvalue()


def inline(sheet: Sheet, name: str, alt: str) -> str:
    """Return a sheet as an SVG element to put into a page.

    Its ids are made unique by `name`; ink and paper become the page's own colours, so that it follows a dark scheme;
    it is scaled by the page's width and named by `alt` for screen readers.
    """
    from html import escape

    text = sheet.svg(name, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = text.replace(style.INK, "currentColor").replace(style.PAPER, "var(--paper)")
    text = _COLOUR.sub(_variable, text)
    text = _FAINT.sub(lambda found: f"{found[1]}var(--o{found[2][2:]}, {found[2]})", text)
    opening = re.match(r"<svg[^>]*>", text)
    assert opening is not None, "matplotlib wrote no svg element"
    box = re.search(r'viewBox="([^"]+)"', opening.group(0))
    assert box is not None, "matplotlib wrote no viewBox"
    label = escape(alt, quote=True)
    start = f'<svg class="panel" viewBox="{box.group(1)}" role="img" aria-label="{label}">'
    return start + text[opening.end() :].replace("xlink:href", "href").strip()


def dark_colours(page: str) -> str:
    """Return what a dark page's style has to say of the colours of its figures: --c2a7fb8:#4aa3de; and so on.

    What is faint on white is hardly to be seen on near-black: bands and dots are less transparent there (--o16:0.288;).
    """
    used = sorted(set(re.findall(r"var\(--c([0-9a-f]{6}),", page)))
    faint = sorted(set(re.findall(r"var\(--o(\d+),", page)))
    lifted = "".join(f"--o{digits}:{LIFT * float('0.' + digits):.3g};" for digits in faint)
    return "".join(f"--c{colour}:{style.dark('#' + colour)};" for colour in used) + lifted


def _variable(found: re.Match[str]) -> str:
    """Return a colour as a variable that a dark page sets anew; one that has no partner stays."""
    colour = found[0]
    return colour if style.dark(colour) is None else f"var(--c{colour[1:]}, {colour})"


def _named_dots(text: str) -> str:
    """Return an SVG document whose dots have the names that :func:`style.hover` gave them, as their titles."""
    parts, end = [], 0
    for group in _NAMED.finditer(text):
        names, close = group[1].split(style.HOVER), text.index("</g>", group.end())
        dots = list(_DOT.finditer(text, group.end(), close))
        parts += [text[end : group.start()], "<g>"]
        end = group.end()
        if len(dots) == len(names):
            for dot, name in zip(dots, names, strict=True):
                parts += [text[end : dot.start()], f"<g><title>{name}</title>{dot[0]}</g>"]
                end = dot.end()
    return "".join([*parts, text[end:]])


def new_axes(height: float = HEIGHT) -> Axes:
    """Return empty axes on a figure of their own, as large as a panel of the report [height in inches].

    In a notebook the figure is pyplot's, which shows it below the cell; elsewhere `ax.figure.savefig(path)` writes it.
    """
    with _settings():
        if sys.modules.keys() & {"ipykernel", "matplotlib.pyplot"}:
            from matplotlib import pyplot

            return pyplot.figure(figsize=(WIDTH, height), layout="constrained").add_subplot()
        from matplotlib.figure import Figure as Canvas

        return Canvas(figsize=(WIDTH, height), layout="constrained").add_subplot()


def compose(panels: Sequence[Panel], across: int = 2, scale: tuple[float, float] = (1.0, 1.0)) -> Canvas:
    """Return a matplotlib figure with at most `across` panels in a row; `scale` of width and height to a screen's."""
    from matplotlib.figure import Figure as Canvas

    from analysis.report.figures.layout import Layout

    across = min(across, len(panels))
    rows = [panels[i : i + across] for i in range(0, len(panels), across)]
    heights = [max(p.height for p in row) for row in rows]
    canvas = Canvas(figsize=(scale[0] * WIDTH * across, scale[1] * sum(heights)), layout=Layout())
    grid = canvas.add_gridspec(len(rows), across, height_ratios=heights)
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            panel.draw(canvas.add_subplot(grid[i, j]))
    return canvas
