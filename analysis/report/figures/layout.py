"""Laying out panels without drawing them: matplotlib lays out as it draws, and draws all a second time to save it."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine


class LaidOut(Exception):  # noqa: N818 (it says that something is done)
    """Where panels go is known, and what follows would be drawn for nothing."""


class Layout(ConstrainedLayoutEngine):
    """Matplotlib's constrained layout, which ends the drawing that asked for it with :class:`LaidOut`."""

    def execute(self, fig: Figure) -> None:
        """Lay out, and leave."""
        super().execute(fig)
        raise LaidOut


def lay_out(figure: Figure, **options: Any) -> None:
    """Lay a figure out by the widths of text of the format in `options`, those of savefig; once is for good."""
    if figure.get_layout_engine() is None:
        return
    try:
        figure.savefig(io.BytesIO(), **options)
    except LaidOut:
        figure.set_layout_engine(None)
