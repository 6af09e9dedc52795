"""Points that go on from another point's checkpoint: the jobs that their jobs wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from study.records.ledger import Ledger


def split(
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
        if batch is None or gone or batch.executor != "slurm":
            held[key] = f"parent {parent} has not completed"
        else:
            after[key] = f"afterok:{batch.job(batch.task(parent))}"
    return after, held


def lives(dependency: str, alive: Mapping[str, int]) -> bool:
    """Whether a job of the array that a dependency names waits or runs; `alive`: how many do, by array id."""
    return alive.get(dependency.partition(":")[2].partition("_")[0], 0) > 0


def pending(known: Ledger) -> bool:
    """Whether a point's latest job has to wait for another one, or had to."""
    return any(known.batches[name].resources.get("dependency") for name in set(known.current.values()))
