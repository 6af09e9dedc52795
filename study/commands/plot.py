"""`python -m study plot STUDY [--out DIR]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from study.commands import add_json, add_study, emit
from study.records.settings import find_study
from study.storage.mounts import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the plots; default: reports/STUDY/search")


def run(options: argparse.Namespace) -> int:
    """Draw a search from its log; the pictures are written anew each time."""
    from study.search.plots import captions, draw
    from study.search.trial_queue import TrialQueue

    folder = find_study(options.study, options.runs)
    if options.out is not None:
        check_folder(f"--out {options.out}", options.out)
    out = options.out or folder.path.absolute().parent.parent / "reports" / folder.name / "search"
    drawn = draw(TrialQueue.of(folder).search, out)
    if options.json:
        emit("plot", folder, {"pictures": {path.stem: str(path) for path in drawn}})
        return 0
    for path in drawn:
        print(f"{path}  # {captions()[path.stem]}")
    return 0
