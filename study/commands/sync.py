"""`python -m study sync STUDY`."""

from __future__ import annotations

import argparse

from study.commands import add_study
from study.submission import find_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")


def run(options: argparse.Namespace) -> int:
    """Send to MLflow what it does not have yet; killed or repeated, nothing is sent twice."""
    from study.tracking.__main__ import main

    folder = find_study(options.study, options.runs)
    return main(["sync", str(folder.path), *(["--follow"] if options.follow else [])])
