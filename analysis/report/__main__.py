"""`python -m analysis.report fit=reports/STUDY/fit.json [out=…] [runs=…] [figures=svg,pdf,png] [size=column]`."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.report.__main__")

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

USAGE = """usage: python -m analysis.report fit=reports/STUDY/fit.json [out=FOLDER]
           [runs=runs/STUDY] [figures=svg,pdf,png] [size=screen]

  fit      fit.json as python -m analysis.fit wrote it, with runs.csv beside it
  out      folder for report.html and figures/ (default: the folder of fit.json)
  runs     the study's run folder, for learning curves (default: none)
  figures  formats of the figures: svg, pdf, png, or some of them (default: all
           three); their data as csv too
  size     of the figures' files: screen, or in print column (3.35 inches wide)
           or page (7 inches wide)"""
PATHS = ("fit", "out", "runs")
CHOICES = {"figures": ("svg", "pdf", "png"), "size": ("screen", "column", "page")}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what key=value arguments give: paths, the kinds of figures, a size; ValueError says what is allowed."""
    given: dict[str, Any] = {}
    keys = (*PATHS, *CHOICES)
    for argument in arguments:
        key, found, value = argument.partition("=")
        if key not in keys or not found or not value:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"; did you mean {near[0]}={near[0].upper() if near[0] in CHOICES else 'PATH'}?" if near else ""
            allowed = ", ".join([*(k + "=PATH" for k in PATHS), *(f"{k}={'|'.join(v)}" for k, v in CHOICES.items())])
            raise ValueError(f"{argument!r} is not one of {allowed}{hint}")
        given[key] = Path(value) if key in PATHS else _chosen(key, value)
    if "fit" not in given:
        raise ValueError("fit= is missing: the fit.json that python -m analysis.fit wrote (--help lists the keys)")
    return given


def _chosen(key: str, text: str) -> Any:
    """Return the kinds of figures, in their order, or the size."""
    named = text.split(",") if key == "figures" else [text]
    bad = [name for name in named if name not in CHOICES[key]]
    if bad:
        raise ValueError(f"{key}={text}: {bad[0]!r} is not allowed; use {', '.join(CHOICES[key])}")
    return tuple(kind for kind in CHOICES[key] if kind in named) if key == "figures" else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if any(word in ("-h", "--help", "help") for word in words):
        print(USAGE)
        return 0
    try:
        given = parse(words)
    except ValueError as error:
        print(f"analysis.report: {error}", file=sys.stderr)
        return 2
    from analysis.report.write import write

    try:
        fit = given.pop("fit")
        kinds = {"kinds": given.pop("figures")} if "figures" in given else {}
        written = write(fit, given.pop("out", fit.parent), **given, **kinds)
    except ValueError as error:
        print(f"analysis.report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"analysis.report: {error.filename}: {error.strerror or error}; give another out=PATH", file=sys.stderr)
        return 2
    print(f"{written.report} and {len(written.figures)} files in {written.report.parent / 'figures'}")
    return 0
