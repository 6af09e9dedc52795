"""Budgets stay apart in colour: for readers who do not tell red from green, in grey, on white and on black."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from numpy.typing import NDArray

from analysis.report.figures import canvas, style
from analysis.text.colours import ramp

Array = NDArray[np.float64]
COUNTS = range(3, 13)
APART = 12.0
"""A CIEDE2000 difference that is seen at a glance."""
LIGHTER = 4.5
"""A difference of CIE lightness, 0 to 100, that is seen between two lines."""

TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
DEUTAN = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
"""Machado et al. 2009, severity 1.0, on linear RGB."""


def linear(colour: str) -> Array:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: Array) -> Array:
    t = TO_XYZ @ rgb / WHITE
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def deutan(colour: str) -> Array:
    return lab(np.clip(DEUTAN @ linear(colour), 0, 1))


def ciede2000(one: Array, two: Array) -> float:
    """Return the CIEDE2000 difference of two CIELAB colours (Sharma, Wu and Dalal 2005)."""
    chroma = (math.hypot(*one[1:]) + math.hypot(*two[1:])) / 2
    g = 0.5 * (1 - math.sqrt(chroma**7 / (chroma**7 + 25**7)))
    (l1, a1, b1), (l2, a2, b2) = one * [1, 1 + g, 1], two * [1, 1 + g, 1]
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    h = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = 1 - 0.17 * math.cos(math.radians(h - 30)) + 0.24 * math.cos(math.radians(2 * h))
    t += 0.32 * math.cos(math.radians(3 * h + 6)) - 0.20 * math.cos(math.radians(4 * h - 63))
    sl = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * c, 1 + 0.015 * c * t
    rc = 2 * math.sqrt(c**7 / (c**7 + 25**7))
    rt = -rc * math.sin(math.radians(60 * math.exp(-(((h - 275) / 25) ** 2))))
    x, y, z = (l2 - l1) / sl, (c2 - c1) / sc, dh / sh
    return math.sqrt(x * x + y * y + z * z + rt * y * z)


@pytest.mark.parametrize(
    ("one", "two", "wanted"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.5, 0.0), (50.0, 0.0, -2.5), 4.3065),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_that_of_the_published_pairs(
    one: tuple[float, ...], two: tuple[float, ...], wanted: float
) -> None:
    """Sharma, Wu and Dalal 2005, table 1."""
    assert ciede2000(np.array(one), np.array(two)) == pytest.approx(wanted, abs=1e-4)


def schemes(count: int) -> tuple[list[str], list[str]]:
    light = ramp(count)
    return light, [partner for colour in light if (partner := style.dark(colour)) is not None]


@pytest.mark.parametrize("count", COUNTS)
def test_budgets_next_to_each_other_are_told_apart(count: int) -> None:
    for colours in schemes(count):
        assert len(set(colours)) == count
        for one, two in pairwise(colours):
            lighter = lab(linear(two))[0] - lab(linear(one))[0]
            assert lighter >= LIGHTER, "in grey, a larger budget is a lighter line"
            seen = deutan(one), deutan(two)
            assert ciede2000(*seen) >= APART or abs(seen[0][0] - seen[1][0]) >= LIGHTER


@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_budgets_differ_at_a_glance(count: int) -> None:
    light, dark = schemes(count)
    assert min(ciede2000(deutan(one), deutan(two)) for one, two in pairwise(light)) >= APART
    assert min(ciede2000(lab(linear(one)), lab(linear(two))) for one, two in pairwise(dark)) >= APART


def test_every_line_stands_out_from_its_page() -> None:
    for colours, paper, least in zip(schemes(12), (style.PAPER, "#14181d"), (20, 30), strict=True):
        page = lab(linear(paper))[0]
        assert min(abs(lab(linear(colour))[0] - page) for colour in colours) > least


def test_a_dark_page_sets_the_colours_of_its_figures_anew() -> None:
    colours = ramp(50)
    assert None not in [style.dark(colour) for colour in colours]
    assert style.dark("#00ff00") is None
    page = " ".join(f"var(--c{colour[1:]}, {colour})" for colour in (style.BLUE, colours[0], style.BLUE))
    said = f"--c{colours[0][1:]}:{style.dark(colours[0])};", f"--c{style.BLUE[1:]}:{style.dark(style.BLUE)};"
    assert canvas.dark_colours(page) == "".join(said)


def test_bands_and_crowds_of_dots_are_less_transparent_on_a_dark_page() -> None:
    def draw(ax: Axes) -> Axes:
        ax.axvspan(0.2, 0.4, color=style.BLUE, alpha=0.14, linewidth=0)
        ax.plot([0.1], [0.2], "o", mfc=style.BLUE, mec="none", alpha=0.3)
        ax.axhline(0.5, color=style.BLUE, alpha=0.25)
        ax.axvspan(0.6, 0.8, color=style.BLUE, alpha=0.8, linewidth=0)
        return ax

    (panel,) = canvas.Figure("one", "One", "", (canvas.Panel("one", "", draw),), canvas.Table((), ())).inline()
    assert "opacity: var(--o14, 0.14)" in panel and "fill-opacity: var(--o3, 0.3)" in panel
    assert "stroke-opacity: 0.25" in panel and "opacity: 0.8" in panel, "lines and what is hardly transparent stay"
    assert canvas.dark_colours(panel).endswith("--o14:0.252;--o3:0.54;")
