"""`python -m study sync STUDY`."""

from __future__ import annotations

import argparse
import dataclasses

from study.commands import add_json, add_study, emit
from study.records.settings import find_study, load_submission
from study.storage.layout import StudyFolder

AWAY = 75


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("--follow", action="store_true", help="keep syncing until Ctrl-C")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Send to MLflow what it does not have yet; killed or repeated, nothing is sent twice."""
    folder = find_study(options.study, options.runs)
    if options.json:
        if options.follow:
            raise ValueError("sync: --follow runs until it is stopped and --json prints one object: give one of them")
        return _machine(folder)
    from study.tracking.__main__ import main

    return main(["sync", str(folder.path), *(["--follow"] if options.follow else [])])


def _machine(folder: StudyFolder) -> int:
    from study.config.tracking_uri import shown
    from study.tracking import sync
    from study.tracking.store import StoreAwayError

    tracking = load_submission(folder).tracking
    about = {"enabled": tracking.enabled, "store": shown(tracking.uri)}
    try:
        done = sync(folder, tracking)
    except (StoreAwayError, OSError) as error:
        emit("sync", folder, {**about, "error": str(error)})
        return AWAY
    emit("sync", folder, {**about, **dataclasses.asdict(done)})
    return 1 if done.refused else 0
