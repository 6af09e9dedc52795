"""`python -m study retry STUDY [--state STATES | --point KEY]`."""

from __future__ import annotations

import argparse

from study import ledger
from study.commands import add_study
from study.execute import follow, start
from study.observe import observe
from study.selection import choose, parse_states
from study.submission import find_study, load_submission, reference

DEFAULT_STATES = "failed,interrupted,time_limit"
RETRIABLE = frozenset({"failed", "interrupted", "time_limit", "cancelled", "unknown"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument(
        "--state",
        default=DEFAULT_STATES,
        help=f"points in these states; default: {DEFAULT_STATES}; --state cancelled takes back a cancel, and unknown "
        "is for points of which nobody can say more",
    )
    parser.add_argument("--point", action="append", default=[], metavar="KEY", help="this point only; may be repeated")
    parser.add_argument("--wait", action="store_true", help="slurm: stay with live progress (local always stays)")


def run(options: argparse.Namespace) -> int:
    """Submit the points again; they resume from their newest checkpoints."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        raise ValueError(f"{folder.name} is a search: give its command again, and its workers carry on")
    states = parse_states(options.state)
    refused = sorted(states - RETRIABLE)
    if refused:
        raise ValueError(f"--state {refused[0]}: only {', '.join(sorted(RETRIABLE))} can be tried again")
    chosen = choose(observe(folder), states, options.point)
    wrong = [status for status in chosen if status.state not in RETRIABLE]
    if wrong:
        raise ValueError(f"point {wrong[0].key} is {wrong[0].state}: there is nothing to try again")
    cluster = load_submission(folder).cluster
    if not chosen:
        print(f"{folder.name}: no point is {' or '.join(sorted(states))}")
        return 0
    keys = [status.key for status in chosen]
    ledger.append(folder, "retry", keys=keys)
    start(folder, keys, cluster)
    if cluster.executor == "local" or options.wait:
        return follow(folder, cluster)
    print(f"{folder.name}: {len(keys)} points submitted again.  python -m study watch {reference(folder)}")
    return 0
