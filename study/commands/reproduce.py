"""`python -m study reproduce`: what `make study` runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from study.reproduce import reproduce


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout; default: this directory")
    parser.add_argument("--report", type=Path, default=Path("reports/isoflop"), help="folder of the report, in it")
    parser.add_argument("arguments", nargs="*", help="handed on to dvc repro")


def run(options: argparse.Namespace) -> int:
    """Run the pipeline and print its answer."""
    return reproduce(options.root.absolute(), options.report, options.arguments)
