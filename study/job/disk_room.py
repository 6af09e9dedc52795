"""Whether the disk has room for a run as its job begins: what would be trained in vain waits instead."""

from __future__ import annotations

import sys

from study.executors import load
from study.job.attempt import JobContext
from study.reconcile import disk
from study.reconcile.dependencies import queued_again
from study.records import ledger
from study.records.point import find_point


def left_unstarted(work: JobContext, state: ledger.Ledger, unit: str | None = None) -> bool:
    """Take room for a point's checkpoints; where there is none let the point of a scheduler's job wait again.

    unit: the name under which the ledger has it, where it is a search's. For a run of this machine whoever starts it
    has taken the room.
    """
    batch = state.batches.get(work.batch.name, work.batch)  # which says who was asked, not who starts its ranks
    if not load(batch.executor).detached:
        return False
    point = find_point(work.study, work.key)
    why = disk.take_room(work.study, point, state)
    if not why:
        return False
    print(f"{work.key}: not started: {why}", file=sys.stderr)
    again = queued_again(work.study, batch, [unit or work.key], why, disk.needed_for(point))
    ledger.extend(work.study, [again])
    return True
