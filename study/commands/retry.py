"""`python -m study retry STUDY [POINT …] [--state STATES] [--where KEY=VALUE]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout

from study.commands import add_json, add_selection, add_study, emit
from study.executors import load
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.records import ledger
from study.records.settings import find_study, load_submission, reference
from study.status.observer import Observer
from study.status.selection import parse_states, selected
from study.status.states import PointState, PointStatus
from study.storage.layout import StudyFolder
from study.text import counted
from study.watch.follow import follow

DEFAULT_STATES = "failed,interrupted,time_limit"
RETRIABLE = frozenset(
    {PointState.FAILED, PointState.INTERRUPTED, PointState.TIME_LIMIT, PointState.CANCELLED, PointState.UNKNOWN}
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_selection(
        parser,
        DEFAULT_STATES,
        "points in these states; cancelled resumes cancelled points, unknown those whose end cannot be determined",
    )
    parser.add_argument("--wait", action="store_true", help="slurm: stay and show live progress (local always does)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Submit the points again; they resume from their newest checkpoints."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        raise ValueError(f"{folder.name} is a search: run its command again, and its workers continue")
    states = parse_states(options.state or DEFAULT_STATES)
    refused = sorted(states - RETRIABLE)
    if refused:
        raise ValueError(f"--state {refused[0]}: only {', '.join(sorted(RETRIABLE))} can be tried again")
    observer = Observer(folder)
    observer.refresh()
    chosen = selected(options, observer.statuses(), observer.points, DEFAULT_STATES)
    wrong = [status for status in chosen if status.state not in RETRIABLE]
    if wrong:
        raise ValueError(f"point {wrong[0].key} is {wrong[0].state}: there is nothing to try again")
    cluster = load_submission(folder).cluster
    keys = [status.key for status in chosen]
    if options.json and keys and not load(cluster.executor).detached:
        raise ValueError("retry --json: local runs show their progress until they end: leave --json out")
    if keys:
        try:
            with redirect_stdout(sys.stderr if options.json else sys.stdout):
                step(folder, Services(), Submit(keys, cluster, retried=keys))
        except OSError:
            print(f"{folder.name}: {_left(folder, keys)}", file=sys.stderr)
            raise
    if options.json:
        emit("retry", folder, {"submitted": keys})
        return 0
    if not keys:
        print(f"{folder.name}: no point is {' or '.join(sorted(states))}{_left_out(observer.statuses(), states)}")
        return 0
    if options.wait or not load(cluster.executor).detached:
        return follow(folder, cluster)
    print(f"{folder.name}: {counted(len(keys), 'point')} submitted again.  python -m study watch {reference(folder)}")
    return 0


def _left(folder: StudyFolder, keys: Collection[str]) -> str:
    """Say how a disk error left points that were to be tried again."""
    waiting = ledger.read(folder).waiting.keys() & set(keys)
    if waiting:
        return f"{counted(len(waiting), 'point')} to be submitted: any later command of the study does it"
    return "nothing was submitted; the study is as it was"


def _left_out(statuses: Iterable[PointStatus], states: Collection[str]) -> str:
    """Say how many points could be tried again that are in none of these states, and how to select them."""
    others = sorted(
        Counter(status.state.value for status in statuses if status.state in RETRIABLE - set(states)).items()
    )
    if not others:
        return ""
    said = ", ".join(f"{count} {state}" for state, count in others)
    return f"; of the others, {said}: select them by --state {','.join(state for state, _ in others)}"
