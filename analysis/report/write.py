"""From fit.json to files: figures as SVG, PDF, PNG and CSV, and report.html."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from analysis import forked
from analysis.inputs import provenance
from analysis.report.figures import canvas, data
from analysis.report.figures.canvas import Figure
from analysis.report.figures.data import Curve, Row
from analysis.report.figures.registry import FIGURES
from analysis.report.page import FOLDER, page
from analysis.text import files
from analysis.values import study_result
from analysis.values.study_result import Fit

KINDS = ("svg", "pdf", "png")
"""What figures can be written as; the data of each are written as CSV beside it."""


@dataclass(frozen=True)
class Written:
    """What was written: the page, and the figures' files beside it."""

    report: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class Drawn:
    """A figure as it is written: its files' contents by kind, and each panel as an SVG element of the page."""

    files: Mapping[str, bytes]
    panels: tuple[str, ...]


def figures(fit: Fit, rows: Sequence[Row], learning: Sequence[Curve] = ()) -> tuple[Figure, ...]:
    """Return every figure that these results can fill, in the order of the report."""
    every = (make(fit, rows, learning) for make in FIGURES.values())
    return tuple(figure for figure in every if figure is not None)


def write(
    fit: Path, out: Path, runs: Path | None = None, kinds: Sequence[str] = KINDS, size: str = canvas.SCREEN
) -> Written:
    """Write the report of the fit at `fit` into the folder `out`.

    `runs.csv` is read from beside `fit`; `runs` is the study's run folder, for learning curves and provenance.
    Figures go to `out/figures/NAME.KIND` for each of `kinds` (svg, pdf, png), of one of canvas.SIZES, and their data
    to NAME.csv. ValueError says which input is missing or broken.
    """
    found = study_result.load(fit)
    rows = data.read_rows(fit.parent / "runs.csv")
    if runs is not None and not runs.is_dir():
        raise ValueError(f"runs={runs} is not a folder; give runs=runs/STUDY, or leave it out for no learning curves")
    learning = () if runs is None else data.read_curves(runs, rows)
    wanted, kinds = figures(found, rows, learning), (*kinds, "csv")
    _load_matplotlib()
    drawn = forked.each(lambda figure: draw(figure, kinds, size), wanted, forked.cores())
    contents = {
        out / FOLDER / f"{figure.name}.{kind}": content
        for figure, made in zip(wanted, drawn, strict=True)
        for kind, content in made.files.items()
    }
    for path, content in contents.items():
        _put(path, content)
    _remove_stale(out / FOLDER, contents)
    report = out / "report.html"
    origin = provenance.read(runs or Path(found.source))
    panels = {figure.name: made.panels for figure, made in zip(wanted, drawn, strict=True)}
    _put(report, page(found, rows, wanted, kinds, origin, panels=panels).encode())
    return Written(report, tuple(contents))


def draw(figure: Figure, kinds: Sequence[str], size: str) -> Drawn:
    """Return a figure's files of these kinds, of one of canvas.SIZES, and its panels for the page."""
    sheet = figure.sized(size)
    make: dict[str, Callable[[], bytes]] = {
        "svg": lambda: sheet.svg(figure.name, transparent=False).encode(),
        "pdf": sheet.pdf,
        "png": sheet.png,
        "csv": canvas.csv_text(figure.table).encode,
    }
    return Drawn({kind: make[kind]() for kind in kinds}, figure.inline() if figure.shown else ())


def _load_matplotlib() -> None:
    """Import what every figure is drawn with: each fork would do so for itself."""
    for module in ("figure", "backends.backend_agg", "backends.backend_pdf", "backends.backend_svg"):
        import_module(f"matplotlib.{module}")


def _remove_stale(folder: Path, written: Iterable[Path]) -> None:
    """Remove figures of an earlier fit that this one cannot fill, so that none contradicts the page."""
    kept = set(written)
    for name in FIGURES:
        for ending in (*KINDS, "csv"):
            path = folder / f"{name}.{ending}"
            if path not in kept:
                path.unlink(missing_ok=True)


def _put(path: Path, content: bytes) -> None:
    """Write a file by atomic rename; an equal file is left alone."""
    if path.exists() and path.read_bytes() == content:
        return
    files.write(path, content)
