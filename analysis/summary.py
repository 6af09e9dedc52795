"""`python -m analysis.summary`: the few lines at the end of a study. Standard library only."""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from analysis.text.start import start

    start("analysis.summary")

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.report import sentences
from analysis.report.terminal import summary
from analysis.text import commandline, terminal
from analysis.text.commandline import Key
from analysis.values import study_result

PURPOSE = "What a fit says in a few lines: the law, what to train next, how far to trust it."
KEYS = (
    Key("fit", "fit.json as python -m analysis.fit wrote it (required)", required=True),
    Key("report", "path of the report that the last line names (default: report.html beside the fit, if it is there)"),
)
EXAMPLES = ("python -m analysis.summary fit=reports/isoflop/fit.json",)


def act(options: Mapping[str, Any]) -> int:
    """Print the summary of a fit."""
    path = Path(options["fit"])
    fit, beside = study_result.load(path), path.parent / "report.html"
    terminal.show(summary(sentences.read(fit), options["report"] or (str(beside) if beside.exists() else None)))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary of the fit that `arguments` name; return the exit code."""
    return commandline.run("analysis.summary", PURPOSE, KEYS, act, arguments, examples=EXAMPLES)
