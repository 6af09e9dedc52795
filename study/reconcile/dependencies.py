"""SLURM dependencies of points that branch from another point's checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from study.executors import load, query
from study.reconcile.last_job import has_ended
from study.reconcile.services import Services
from study.records import ledger, lineage
from study.records.ledger import Batch, Ledger
from study.records.outcomes import completed
from study.records.points import load_points
from study.records.settings import load_submission
from study.status.observer import Observer
from study.status.states import STRANDED
from study.storage.layout import StudyFolder


def job_dependencies(
    waiting: Mapping[str, str], known: Ledger, over: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Return, of the points that wait for a parent, sbatch's dependency where that has a job, else why they wait. Pure.

    `waiting`: the parent of each. `over`: parents whose latest attempt has ended. A point stays while its parent is in
    no job that may still succeed: asked again once there is one, this names it.
    """
    after, held = {}, {}
    for key, parent in waiting.items():
        batch = known.batch(parent)
        gone = batch is None or batch.job_id is None or parent in known.cancelled or parent in over
        if batch is None or gone or not load(batch.executor).dependencies:
            held[key] = f"parent {parent} has not completed"
        else:
            after[key] = f"afterok:{batch.job(batch.task(parent))}"
    return after, held


def lives(dependency: str, alive: Mapping[str, int]) -> bool:
    """Whether a job of the array that a dependency names waits or runs; `alive`: how many do, by array id."""
    return alive.get(dependency.partition(":")[2].partition("_")[0], 0) > 0


def relations(folder: StudyFolder, known: Ledger) -> tuple[dict[str, str], dict[str, str]]:
    """Return what points have to wait for whose parent has not completed: its job, or, where it has none, why."""
    if not folder.points.exists() or b'"parent":"' not in folder.points.read_bytes():
        return {}, {}
    points = load_points(folder)
    ended_well = {key for key in lineage.parents(points.values()) if completed(folder, key)}
    waiting = lineage.waiting(points, ended_well)
    over = {parent for parent in set(waiting.values()) if has_ended(folder, parent, known)}
    return job_dependencies(waiting, known, over)


def take_back(folder: StudyFolder, services: Services, known: Ledger) -> bool:
    """Let points wait again whose jobs never began them: SLURM gave the job up, or it ended before their turn.

    Returns whether there were any.
    """
    if not (known.has_dependencies or known.takes_turns):
        return False
    observer = Observer(folder, lambda batches: query(batches, services.runner))
    observer.refresh()
    stranded: dict[str, list[str]] = {}
    for status in observer.statuses():
        if status.why in STRANDED:
            stranded.setdefault(known.current[status.key], []).append(status.key)
    ledger.extend(folder, [queued_again(folder, known.batches[name], keys) for name, keys in stranded.items()])
    return bool(stranded)


def queued_again(
    folder: StudyFolder, batch: Batch, keys: Sequence[str], why: str = "", needs: int | None = None
) -> dict[str, Any]:
    """Return the event by which points of a batch wait again for what they were submitted with.

    needs [bytes]: of the disk, where each found too few.
    """
    resources = {name: value for name, value in batch.resources.items() if name != "dependency"}
    parallel = load_submission(folder).cluster.array_parallelism
    asked = {"resources": resources, "executor": batch.executor, "code": batch.code, "parallel": parallel}
    wanting = {} if needs is None else {"needs": needs}
    return {"event": "waiting", "name": batch.name, "keys": list(keys), "why": why, **asked, **wanting}
