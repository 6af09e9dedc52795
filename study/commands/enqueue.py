"""`python -m study enqueue STUDY KEY=VALUE …`."""

from __future__ import annotations

import argparse

from study.commands import add_json, add_study, emit
from study.records.settings import find_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)
    parser.add_argument(
        "values", nargs="+", metavar="KEY=VALUE", help="settings to try; the sampler draws the other keys"
    )


def run(options: argparse.Namespace) -> int:
    """Let a search try these settings before any that its sampler proposes; the same ones twice are one trial."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from study.search.from_overrides import enqueued
    from study.search.trial_queue import TrialQueue

    folder = find_study(options.study, options.runs)
    queue = TrialQueue.of(folder)
    try:
        parsed = OverridesParser.create().parse_overrides(options.values)
    except HydraException as error:
        raise ValueError(f"{' '.join(options.values)}: give each setting as KEY=VALUE ({error})") from None
    point = enqueued({o.key_or_group: o.value() for o in parsed}, queue.search.space)
    shown = " ".join(f"{name}={value}" for name, value in point.items())
    new = bool(queue.enqueue([point]))
    left = queue.settings.trials - len(queue.search.trials)
    if options.json:
        emit("enqueue", folder, {"settings": point, "queued": new, "trials_left": max(0, left)})
        return 0
    if not new:
        print(f"{folder.name}: {shown} is in the queue or was tried already")
        return 0
    print(f"{folder.name}: {shown} " + ("is tried next" if left > 0 else "waits until search.trials is raised"))
    return 0
