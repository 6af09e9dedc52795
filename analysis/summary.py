"""`python -m analysis.summary`: the few lines at the end of a study. Standard library only."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.summary")

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.report.terminal import summary

USAGE = "usage: python -m analysis.summary fit=reports/STUDY/fit.json [report=reports/STUDY/report.html]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary of the fit that `arguments` name; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    given = dict(a.split("=", 1) for a in words if "=" in a)
    unknown = [a for a in words if a.split("=", 1)[0] not in ("fit", "report") or "=" not in a]
    if unknown or "fit" not in given:
        print(USAGE, file=sys.stderr)
        return 2
    path = Path(given["fit"])
    try:
        fit = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        print(f"fit={path} cannot be read ({error}); run python -m analysis.fit first", file=sys.stderr)
        return 2
    beside = path.parent / "report.html"
    try:
        text = summary(fit, given.get("report") or (str(beside) if beside.exists() else None))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
        said = f"{type(error).__name__}: {error}"
        print(f"fit={path} is no fit.json of this version ({said}); run python -m analysis.fit again", file=sys.stderr)
        return 2
    print(text)
    return 0
