"""Points that go on from another point's checkpoint: the jobs that their jobs wait for."""

from __future__ import annotations

from collections.abc import Mapping

from study.ledger import Ledger


def split(waiting: Mapping[str, str], known: Ledger) -> tuple[dict[str, str], dict[str, str]]:
    """Return, of the points that wait for a parent, sbatch's dependency where that has a job, else why they wait. Pure.

    `waiting`: the parent of each. A point stays while its parent is in no job: asked again once that is submitted,
    this names the job.
    """
    after, held = {}, {}
    for key, parent in waiting.items():
        batch = known.batch(parent)
        if batch is None or batch.job_id is None or batch.executor != "slurm" or parent in known.cancelled:
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
