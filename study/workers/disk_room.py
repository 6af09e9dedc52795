"""Whether the disk has room for a trial as a worker begins with it: what would be trained in vain is handed back."""

from __future__ import annotations

import sys
import time

from study.process.children import Signals
from study.reconcile import disk
from study.records import ledger
from study.records.point import find_point
from study.search.state import Claim
from study.search.trial_queue import TrialQueue
from study.storage import room_taken

LOOK_SECONDS = 2.0
"""How often a worker looks whether others have left room."""


def take_or_wait(queue: TrialQueue, claim: Claim, signals: Signals) -> bool:
    """Take room for a claim's checkpoints. Where there is none, hand the claim back and return False.

    A full disk stops the search, as every trial would fail on it. Where only the trials that run have taken the rest,
    the worker waits for one of them to end.
    """
    folder = queue.folder
    point = find_point(folder, claim.key)
    needed = disk.needed_for(point)
    full = disk.too_full_for(point, folder, ledger.read(folder))
    why = full or room_taken.take(folder, claim.key, needed)
    if not why:
        return True
    print(f"trial {claim.unit.trial} ({claim.key}): not started: {why}", file=sys.stderr, flush=True)
    with queue.transaction():
        if queue.search.is_current(claim.number, claim.unit.trial):
            queue.give_up(claim, why, 0.0, begun=False)
    (folder.leases / str(claim.number)).unlink(missing_ok=True)
    if full:
        queue.record_control("stopped", full)
        return False
    while not (signals.received or queue.search.stopped):
        time.sleep(LOOK_SECONDS)
        if not room_taken.lacking(folder, claim.key, needed):
            break
        queue.refresh()
    return False
