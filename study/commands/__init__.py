"""The commands of `python -m study`, one file each; only the one that is called is imported."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Protocol

COMMANDS = {
    "status": "every point by state, failures with their last lines; exit code 1 if a point failed",
    "watch": "the same, live, until all runs ended; Ctrl-C only stops watching",
    "logs": "what a point printed; without a point, which points have logs",
    "cancel": "stop points: running ones write a checkpoint, waiting ones are not started",
    "retry": "points that failed, were killed or ran out of time go on from their checkpoints; "
    "those that were cancelled with --state cancelled",
    "sync": "bring MLflow up to date",
    "reproduce": "the whole pipeline, data -> sweep -> fit -> report, as make study runs it",
}


class Command(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Run it and return the exit code; ValueError is for what the user can put right."""


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a study."""
    parser.add_argument("study", metavar="STUDY", help="the study's name, or its folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all studies")
