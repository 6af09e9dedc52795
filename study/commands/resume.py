"""`python -m study resume STUDY`."""

from __future__ import annotations

import argparse
import sys

from study.commands import add_json, add_study
from study.commands.reconcile import report
from study.executors import load
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.records.points import load_points
from study.records.settings import find_study, load_submission
from study.watch.follow import follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Submit every point that is due; local ones are run by this process. 1 where points still wait."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        raise ValueError(f"{folder.name} is a search: run its command again, and its workers continue")
    cluster = load_submission(folder).cluster
    if options.json and not load(cluster.executor).detached:
        raise ValueError("resume --json: local runs show their progress until they end: leave --json out")
    stream = sys.stderr if options.json else sys.stdout
    services = Services(report=lambda text: print(text, file=stream, flush=True))
    done = step(folder, services, Submit(list(load_points(folder)), cluster))
    if not load(cluster.executor).detached:
        return follow(folder, cluster)
    return report("resume", folder, done.submitted, options.json)
