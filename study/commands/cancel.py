"""`python -m study cancel STUDY [--state STATES | --point KEY]`."""

from __future__ import annotations

import argparse
from collections import defaultdict

from study import ledger
from study.commands import add_study
from study.follow import terminate
from study.observe import Observer, PointStatus
from study.selection import choose, parse_states
from study.submission import find_study, reference

DEFAULT_STATES = "pending,queued,running,unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("--state", default=DEFAULT_STATES, help=f"points in these states; default: {DEFAULT_STATES}")
    parser.add_argument("--point", action="append", default=[], metavar="KEY", help="this point only; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Write down that the points are not wanted any more, then stop those that run."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        from study.search.pool import cancel

        print(cancel(folder))
        return 0
    states = parse_states(options.state)
    observer = Observer(folder)
    observer.refresh()
    chosen = [s for s in choose(observer.statuses(), states, options.point) if not s.ended]
    if not chosen:
        print(f"{folder.name}: nothing to cancel: no such point is waiting or running")
        return 0
    ledger.append(folder, "cancelled", keys=[status.key for status in chosen])
    # Looked at anew: one that began meanwhile has either read the ledger since or is seen to run.
    keys = {status.key for status in chosen}
    stopped = terminate([s for s in observer.statuses() if s.key in keys and s.state == "running"], observer)
    stopped += _cancel_jobs(observer, chosen)
    print(f"{folder.name}: {len(chosen)} points cancelled, {stopped} of them told to stop; their checkpoints stay")
    print(f"python -m study retry {reference(folder)} --state cancelled    # carries on with them")
    return 0


def _cancel_jobs(observer: Observer, chosen: list[PointStatus]) -> int:
    indices: dict[str, list[int]] = defaultdict(list)
    for status in chosen:
        batch = observer.known.batch(status.key)
        if batch is not None and batch.executor == "slurm" and batch.job_id is not None:
            indices[batch.job_id].append(batch.keys.index(status.key))
    if indices:
        from study.executors import slurm

        slurm.cancel(indices)
    return sum(map(len, indices.values()))
