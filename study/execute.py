"""Submitting: a reconcile that may be killed anywhere and run again. Nothing is submitted twice, nothing is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from study import code_version, ledger
from study.config import ClusterConfig
from study.executors import query
from study.executors.local import longest_first, tasks, write_batch
from study.files import locked
from study.follow import follow
from study.freeze import load_points
from study.layout import StudyFolder
from study.observe import Observer
from study.reconcile import WINDOW_SECONDS, Abandon, Action, Confirm, Leave, Submit, decide
from study.resources import Shape
from study.submission import reference

__all__ = ["follow", "script", "settle", "start"]

Say = Callable[[str], None]
SUBMITTER_SECONDS = 120.0
RETRY_SECONDS = 2.0


def _say(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class Outside:
    """What a submission uses of the world: the scheduler's commands, a clock, and a voice."""

    runner: query.Runner = query.run
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    say: Say = _say


def start(folder: StudyFolder, keys: Sequence[str], cluster: ClusterConfig, outside: Outside | None = None) -> int:
    """Submit what is wanted and not yet submitted, and settle what an earlier process left unclear. Idempotent.

    Returns how many points were submitted by this call.
    Points that were interrupted or stopped by a time limit are submitted again and resume; failed, diverged and
    cancelled ones stay as they are until they are retried. For local runs this only writes down what
    :func:`study.follow.follow` starts. Raises ValueError where the scheduler refuses or gives no answer.
    """
    outside = outside or Outside()
    folder.path.mkdir(parents=True, exist_ok=True)
    submitted = 0
    try:
        with locked(folder.submitting, SUBMITTER_SECONDS):
            actions, states = settle(folder, keys, outside)
            _say_what_stays(folder, keys, states, outside)
            for action in actions:
                if isinstance(action, Submit):
                    _submit(folder, action.keys, cluster, outside)
                    submitted += len(action.keys)
                elif isinstance(action, Leave):
                    outside.say(f"{action.name}: left as it is: {action.why}")
    except TimeoutError:
        raise ValueError(
            f"study {folder.name}: another process has been submitting it for {SUBMITTER_SECONDS:.0f} s "
            f"(it holds {folder.submitting}): look at it, then give the command again"
        ) from None
    return submitted


def script(folder: StudyFolder, keys: Sequence[str], cluster: ClusterConfig) -> str:
    """Return the exact sbatch scripts that would be submitted, but for the end of the job name; needs no SLURM."""
    from study.executors import slurm

    arrays = list(slurm.chunks(keys))
    name = slurm.batch_name(folder.name, "dryrun")
    parallel = max(1, cluster.array_parallelism // max(1, len(arrays)))
    shape = Shape.of(cluster)
    return "\n".join(slurm.render(folder, shape, name, len(array), parallel) for array in arrays)


def settle(folder: StudyFolder, wanted: Sequence[str], outside: Outside) -> tuple[list[Action], dict[str, str]]:
    """Settle ambiguous submissions; return what is left to do, and the points' states.

    Waits out the short window in which a submission may still be on its way. For the holder of the submit lock.
    """
    observer = Observer(folder, lambda ids: query.look(ids, outside.runner))
    observer.refresh()
    limit = outside.clock() + 2 * WINDOW_SECONDS
    while True:
        state = ledger.read(folder)
        unclear = [b for b in state.batches.values() if b.ambiguous and b.executor == "slurm"]
        lookups = {b.name: _look_up(folder, b, outside) for b in unclear}
        states = {status.key: status.state for status in observer.statuses()}
        left: list[Action] = []
        on_its_way = False
        for action in decide(wanted, state, states, lookups, outside.clock()):
            if isinstance(action, Confirm):
                ledger.append(folder, "submitted", name=action.name, job_id=action.job_id)
                outside.say(f"{action.name}: was submitted as job {action.job_id}")
            elif isinstance(action, Abandon):
                ledger.append(folder, "abandoned", name=action.name, why=action.why)
                outside.say(f"{action.name}: never reached the scheduler: its points are submitted again")
            else:
                on_its_way |= isinstance(action, Leave) and lookups[action.name].answer == "absent"
                left.append(action)
        if not on_its_way or outside.clock() > limit:
            return left, states
        outside.sleep(RETRY_SECONDS)


def _say_what_stays(folder: StudyFolder, keys: Sequence[str], states: Mapping[str, str], outside: Outside) -> None:
    """Say which points are not submitted again because only a person can tell whether they should be."""
    counts = Counter(states.get(key) for key in dict.fromkeys(keys))
    stay = [state for state in ("failed", "cancelled") if counts[state]]
    if stay:
        said = " and ".join(f"{counts[state]:,} {state}" for state in stay)
        again = f"python -m study retry {reference(folder)} --state {','.join(stay)}"
        outside.say(f"{said}: left as they are; {again} tries them again")


def _look_up(folder: StudyFolder, batch: ledger.Batch, outside: Outside) -> query.Lookup:
    """Look an ambiguous submission up: in the attempts that it may have made already, then by its name."""
    from study.observe import latest_attempt

    for key in batch.keys:
        run = folder.run(key)
        attempt = latest_attempt(run) if run.attempts.is_dir() else None
        if attempt is not None and attempt.batch == batch.name:
            return query.Lookup("found", str(attempt.job["job_id"]).partition("_")[0])
    return query.find(batch.name, batch.time, outside.runner)


def _submit(folder: StudyFolder, keys: Sequence[str], cluster: ClusterConfig, outside: Outside) -> None:
    points = load_points(folder)
    unknown = [key for key in keys if key not in points]
    if unknown:
        raise ValueError(f"study {folder.name} has no point {unknown[0]}: append its points before starting them")
    version = code_version.current()
    code_version.save(version, folder)
    ordered = longest_first(keys, points)
    if cluster.executor == "local":
        write_batch(folder, ordered, version.id, {"tasks": tasks(cluster)})
    else:
        _submit_slurm(folder, ordered, cluster, version.id, outside)


def _submit_slurm(
    folder: StudyFolder, keys: Sequence[str], cluster: ClusterConfig, code: str, outside: Outside
) -> None:
    from study.executors import slurm

    shape = Shape.of(cluster)
    arrays = list(slurm.chunks(keys, slurm.array_limit(outside.runner)))
    parallel = max(1, cluster.array_parallelism // len(arrays))
    for array in arrays:
        name = slurm.batch_name(folder.name)
        text = slurm.render(folder, shape, name, len(array), parallel)
        asked = shape.record()
        ledger.append(folder, "intent", name=name, executor="slurm", keys=list(array), resources=asked, code=code)
        try:
            job_id = slurm.submit(folder, text)
        except slurm.SchedulerError as error:
            job_id = after_error(folder, name, error, outside)
        else:
            ledger.append(folder, "submitted", name=name, job_id=job_id)
        outside.say(f"submitted {len(array):,} points as job array {job_id} ({name})")


def after_error(folder: StudyFolder, name: str, error: ValueError, outside: Outside) -> str:
    """Return the job id if the submission went through in spite of the error; else raise, the ledger being settled."""
    if not getattr(error, "ambiguous", True):
        ledger.append(folder, "abandoned", name=name, why=str(error))
        raise error
    settle(folder, (), outside)
    batch = ledger.read(folder).batches[name]
    if batch.job_id is not None:
        return batch.job_id
    if batch.abandoned is not None:
        raise ValueError(f"{error}: nothing was submitted: give the command again") from error
    raise ValueError(f"{error}: it is not known whether {name} was submitted: give the command again later") from error
