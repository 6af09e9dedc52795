"""`python -m analysis.report fit=reports/STUDY/fit.json [out=reports/STUDY] [runs=runs/STUDY]`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

USAGE = """usage: python -m analysis.report fit=reports/STUDY/fit.json [out=reports/STUDY] [runs=runs/STUDY]

  fit   fit.json as python -m analysis.fit wrote it, with runs.csv beside it
  out   folder for report.html and figures/ (default: the folder of fit.json)
  runs  the study's run folder, for learning curves (default: none)"""
KEYS = ("fit", "out", "runs")


def parse(arguments: Sequence[str]) -> dict[str, Path]:
    """Return the paths that key=value arguments name; ValueError says what is allowed."""
    given: dict[str, Path] = {}
    for argument in arguments:
        key, found, value = argument.partition("=")
        if key not in KEYS or not found or not value:
            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f"; did you mean {near[0]}=PATH?" if near else ""
            raise ValueError(f"{argument!r} is not one of {', '.join(k + '=PATH' for k in KEYS)}{hint}")
        given[key] = Path(value)
    if "fit" not in given:
        raise ValueError("fit=PATH is missing")
    return given


def main(arguments: Sequence[str]) -> int:
    """Write the report; return the exit code."""
    if any(a in ("-h", "--help", "help") for a in arguments):
        print(USAGE)
        return 0
    try:
        given = parse(arguments)
    except ValueError as error:
        print(f"{error}\n\n{USAGE}", file=sys.stderr)
        return 2
    from analysis.report.write import write

    try:
        written = write(given["fit"], given.get("out", given["fit"].parent), given.get("runs"))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{written.report} and {len(written.figures)} files in {written.report.parent / 'figures'}")
    return 0


if __name__ == "__main__":
    from train.spec.interrupts import guarded

    sys.exit(guarded(lambda: main(sys.argv[1:]), "analysis.report"))
