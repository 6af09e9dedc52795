"""`python -m study cancel STUDY [POINT …] [--state STATES] [--where KEY=VALUE]`."""

from __future__ import annotations

import argparse

from study import ledger, terminal
from study.commands import add_json, add_selection, add_study, emit, given_points
from study.follow import terminate
from study.layout import StudyFolder
from study.observe import Observer, PointStatus
from study.selection import selected
from study.submission import find_study, reference
from study.units import counted

DEFAULT_STATES = "waiting,pending,queued,running,unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_selection(parser, DEFAULT_STATES, "points in these states")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write down that the points are not wanted any more, then stop those that run."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        return _search(folder, options)
    observer = Observer(folder)
    observer.refresh()
    chosen = [s for s in selected(options, observer.statuses(), observer.points, DEFAULT_STATES) if not s.ended]
    keys = {status.key for status in chosen}
    stopped = 0
    if chosen:
        ledger.append(folder, "cancelled", keys=[status.key for status in chosen])
        # Looked at anew: one that began meanwhile has either read the ledger since or is seen to run.
        stopped = terminate([s for s in observer.statuses() if s.key in keys and s.state == "running"], observer)
        stopped += _cancel_jobs(observer, chosen)
    again = f"python -m study retry {reference(folder)} --state cancelled"
    if options.json:
        emit("cancel", folder, {"cancelled": [s.key for s in chosen], "told_to_stop": stopped, "next": again})
    elif not chosen:
        print(f"{folder.name}: nothing to cancel: no such point is waiting or running")
    else:
        points = counted(len(chosen), "point")
        terminal.show(f"{folder.name}: {points} cancelled, {stopped} of them told to stop; their checkpoints stay")
        terminal.show(f"{again}    # carries on with them")
    return 0


def _search(folder: StudyFolder, options: argparse.Namespace) -> int:
    from study.search.pool import cancel

    if options.state or given_points(options) or options.where:
        raise ValueError(f"{folder.name} is a search: it is cancelled as a whole, without points, --state or --where")
    said = cancel(folder)
    if options.json:
        emit("cancel", folder, {"search": True, "said": said})
    else:
        terminal.show(said)
    return 0


def _cancel_jobs(observer: Observer, chosen: list[PointStatus]) -> int:
    """Cancel the jobs in which no point is wanted any more; a packed job that goes on tells its points itself."""
    batches = {status.key: observer.known.batch(status.key) for status in chosen}
    keys = [key for key, b in batches.items() if b is not None and b.executor == "slurm" and b.job_id is not None]
    indices = observer.known.unwanted_jobs(keys)
    if indices:
        from study.executors import slurm

        slurm.cancel(indices)
    return len(keys)
