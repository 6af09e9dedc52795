"""`python -m study watch STUDY`."""

from __future__ import annotations

import argparse

from study.commands import add_json, add_study
from study.records.settings import find_study, load_submission
from study.watch.follow import follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show live progress until all runs ended; 1 if one did not complete."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        from study.workers.pool import watch

        if options.json:
            raise ValueError(f"watch --json: {folder.name} is a search: poll status --json instead")
        return watch(folder)
    return follow(folder, load_submission(folder).cluster, control=False, machine=options.json)
