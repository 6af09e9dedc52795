"""The installed `scaling-study`: Ctrl-C counts before the first import of study.console."""

from typing import NoReturn

from train.spec.interrupts import run


def main() -> NoReturn:
    """Run study.console and exit with its code."""
    run("study.console", "scaling-study")
