"""Finding out what became of submissions of which nobody wrote down whether they reached the scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from study import ledger
from study.executors import query
from study.layout import StudyFolder
from study.reconcile import WINDOW_SECONDS, Abandon, Confirm, Leave, decide

RETRY_SECONDS = 2.0


def _say(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class Outside:
    """What a submission uses of the world: the scheduler's commands, a clock, and a voice."""

    runner: query.Runner = query.run
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = _say


def settle(folder: StudyFolder, outside: Outside, *, patient: bool = True, force: bool = False) -> list[Leave]:
    """Settle ambiguous submissions as far as the scheduler says; return those that stay. For the submit lock's holder.

    patient: wait out the short window in which a submission may still be on its way. force: give up what the scheduler
    does not name, also when it gives no answer: the user knows better. Should such a submission arrive after all, its
    jobs find that they are not wanted.
    """
    limit = outside.clock() + 2 * WINDOW_SECONDS
    while True:
        left, on_its_way = _settle_once(folder, outside)
        if not (patient and on_its_way) or outside.clock() > limit:
            break
        outside.sleep(RETRY_SECONDS)
    if force:
        for action in left:
            ledger.append(folder, "abandoned", name=action.name, why=f"given up by the user: {action.why}")
            outside.say(f"{action.name}: given up: its points are submitted again")
        return []
    return left


def _settle_once(folder: StudyFolder, outside: Outside) -> tuple[list[Leave], bool]:
    """Settle what can be; return what stays, and whether some of it may still be on its way to the scheduler."""
    state = ledger.read(folder)
    unclear = [batch for batch in state.batches.values() if batch.ambiguous]
    lookups = {batch.name: _look_up(folder, batch, outside) for batch in unclear if batch.executor == "slurm"}
    left: list[Leave] = []
    for action in decide((), state, {}, lookups, outside.clock()):
        if isinstance(action, Confirm):
            ledger.append(folder, "submitted", name=action.name, job_id=action.job_id)
            outside.say(f"{action.name}: was submitted as job {action.job_id}")
        elif isinstance(action, Abandon):
            ledger.append(folder, "abandoned", name=action.name, why=action.why)
            outside.say(f"{action.name}: never reached the scheduler: its points are submitted again")
        elif isinstance(action, Leave):
            left.append(action)
    return left, any(lookups[action.name].answer == "absent" for action in left)


def after_error(folder: StudyFolder, name: str, error: ValueError, outside: Outside, *, patient: bool = True) -> str:
    """Return the job id if the submission went through in spite of the error; else raise, the ledger being settled.

    What SLURM refuses for good waits no more, and neither does what was to be submitted in the same way.
    """
    if not getattr(error, "ambiguous", True):
        state = ledger.read(folder)
        same = [key for key, asked in state.waiting.items() if asked.resources == state.batches[name].resources]
        refused = [{"event": "refused", "keys": same, "why": str(error)}] if same else []
        ledger.extend(folder, [{"event": "abandoned", "name": name, "why": str(error), "final": True}, *refused])
        raise error
    settle(folder, outside, patient=patient)
    batch = ledger.read(folder).batches[name]
    if batch.job_id is not None:
        return batch.job_id
    if batch.abandoned is not None:
        raise ValueError(f"{error}: nothing was submitted: give the command again") from error
    raise ValueError(f"{error}: it is not known whether {name} was submitted: give the command again later") from error


def _look_up(folder: StudyFolder, batch: ledger.Batch, outside: Outside) -> query.Lookup:
    """Look an ambiguous submission up: in the attempts that it may have made already, then by its name."""
    from study.observe import latest_attempt

    for key in batch.keys:
        run = folder.run(key)
        attempt = latest_attempt(run) if run.attempts.is_dir() else None
        if attempt is not None and attempt.batch == batch.name:
            return query.Lookup("found", str(attempt.job["job_id"]).partition("_")[0])
    return query.find(batch.name, batch.time, outside.runner)
