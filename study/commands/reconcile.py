"""`python -m study reconcile STUDY [--force]`."""

from __future__ import annotations

import argparse
import sys

from study.commands import add_json, add_study, emit
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Resolve
from study.records import ledger
from study.records.settings import find_study
from study.storage.layout import StudyFolder
from study.text import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="give up unclear submissions that the scheduler does not list, even if it does not answer; "
        "if one arrives later, its jobs end at once",
    )


def run(options: argparse.Namespace) -> int:
    """Resolve and submit; 1 where a submission stays unclear or points still wait."""
    folder = find_study(options.study, options.runs)
    stream = sys.stderr if options.json else sys.stdout
    services = Services(report=lambda text: print(text, file=stream, flush=True))
    done = step(folder, services, Resolve(options.force))
    return report("reconcile", folder, done.submitted, options.json)


def report(command: str, folder: StudyFolder, sent: int, machine: bool) -> int:
    """Say what a submission left; return the exit code."""
    state = ledger.read(folder)
    unclear = [batch.name for batch in state.batches.values() if batch.ambiguous]
    if machine:
        emit(command, folder, {"submitted": sent, "waiting": len(state.waiting), "unclear": unclear})
    elif not unclear and not state.waiting:
        said = f"{counted(sent, 'point')} submitted" if sent else "nothing to do"
        print(f"{folder.name}: {said}")
    return 1 if unclear or state.waiting else 0
