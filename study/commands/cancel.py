"""`python -m study cancel STUDY [POINT …] [--state STATES] [--where KEY=VALUE]`."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from study import executors, text
from study.commands import add_json, add_selection, add_study, emit, selection
from study.records import ledger
from study.records.settings import find_study, reference
from study.status import copies
from study.status.observer import Observer
from study.status.selection import given_points, selected
from study.status.states import PointState, PointStatus
from study.storage.layout import StudyFolder
from study.text import counted
from study.watch.follow import terminate

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
    done = Done()
    if chosen:
        ledger.append(folder, "cancelled", keys=[status.key for status in chosen])
        # Looked at anew: one that began meanwhile has either read the ledger since or is seen to run.
        fresh = {status.key: status for status in observer.statuses()}
        now = [fresh[s.key] if fresh[s.key].state == PointState.RUNNING else s for s in chosen]
        running = [status for status in now if status.state == PointState.RUNNING]
        told = terminate(running, observer) + len(_in_queue(observer, running))
        # A packed job that goes on tells its points itself.
        executors.cancel(observer.known, [status.key for status in chosen])
        done = what_was_done(now, told)
    again = f"python -m study retry {reference(folder)} {shlex.join(selection(options, 'cancelled'))}"
    if options.json:
        emit("cancel", folder, {"cancelled": [s.key for s in chosen], **asdict(done), "next": again})
    elif not chosen:
        print(f"{folder.name}: nothing to cancel: no such point is waiting or running")
    else:
        text.show(f"{folder.name}: {counted(len(chosen), 'point')} cancelled: {in_words(done)}")
        text.show("\n".join([*copies.lines(chosen), f"{again}    # continues them"]))
    return 0


@dataclass(frozen=True)
class Done:
    """Counts of points: told to stop, removed from SLURM's queue, not started, and in an unknown state.

    Of those of unknown state the jobs that SLURM has under their names are cancelled too.
    """

    told_to_stop: int = 0
    taken_from_queue: int = 0
    not_started: int = 0
    unknown: int = 0


def what_was_done(points: Sequence[PointStatus], stopped: int) -> Done:
    """Return what was done to these points, of which `stopped` running ones were told to stop. Pure.

    One that ran and could not be told has ended meanwhile.
    """
    counts = Counter[str](point.state for point in points)
    return Done(
        stopped,
        counts[PointState.QUEUED],
        counts[PointState.WAITING] + counts[PointState.PENDING],
        counts[PointState.UNKNOWN],
    )


def in_words(done: Done) -> str:
    """Return what was done, in words; counts of 0 are left out."""
    said = (
        (done.told_to_stop, "told to stop, after a checkpoint"),
        (done.taken_from_queue, "taken out of SLURM's queue"),
        (done.not_started, "not started"),
        (done.unknown, "of unknown state: its jobs in this SLURM are cancelled; what runs elsewhere is not reached"),
    )
    return "; ".join(f"{count:,} {words}" for count, words in said if count) or "they had ended by then"


def _search(folder: StudyFolder, options: argparse.Namespace) -> int:
    from study.workers.pool import cancel

    if options.state or given_points(options) or options.where:
        raise ValueError(f"{folder.name} is a search: it is cancelled as a whole, without points, --state or --where")
    said = cancel(folder)
    if options.json:
        emit("cancel", folder, {"search": True, "said": said})
    else:
        text.show(said)
    return 0


def _in_queue(observer: Observer, points: Sequence[PointStatus]) -> list[ledger.Batch]:
    """Return the batch of each point that is in a job which a scheduler has."""
    batches = (observer.known.batch(status.key) for status in points)
    return executors.submitted(batch for batch in batches if batch is not None)
