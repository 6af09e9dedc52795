"""Where jobs run, each kind of place behind one interface (study.executors.base.Executor)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from study.config.executors import EXECUTORS

if TYPE_CHECKING:
    from study.config.schema import ClusterConfig
    from study.executors.base import Executor, Runner
    from study.executors.job_spec import JobSpec
    from study.executors.jobs import QueueView
    from study.records.ledger import Batch, Ledger


def load(name: str, runner: Runner | None = None) -> Executor:
    """Return an executor by its name, or raise ValueError; `runner` runs its commands, None: as it does itself."""
    return _load(name) if runner is None else _made(name, runner)


def job_spec_of(cluster: ClusterConfig) -> JobSpec:
    """Return what a cluster section asks of its executor; ValueError for what that one does not run."""
    from study.executors.job_spec import JobSpec

    load(cluster.executor).check(cluster)
    return JobSpec.of(cluster)


def detached(batch: Batch | None) -> bool:
    """Whether a batch was handed to a scheduler, which runs it without the command that submitted it."""
    return batch is not None and load(batch.executor).detached


def submitted(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches whose jobs a scheduler knows by an id; none of a study that this one is a copy of."""
    return [batch for batch in batches if batch.job_id is not None and batch.elsewhere is None and detached(batch)]


def query(batches: Iterable[Batch], runner: Runner | None = None) -> QueueView:
    """Ask each scheduler once about the jobs of these batches; what none has is passed over.

    Of jobs that have these ids under another name nothing is known: they are others'.
    """
    asked = _names(batches)
    return _joined(load(name, runner).query(sorted(names)).under(names) for name, names in asked.items())


def queue(batches: Iterable[Batch], runner: Runner | None = None) -> QueueView:
    """Ask each scheduler once which jobs of these batches wait or run."""
    asked = _names(batches)
    return _joined(load(name, runner).queue(sorted(names)).under(names) for name, names in asked.items())


def _names(batches: Iterable[Batch]) -> dict[str, dict[str, set[str]]]:
    """Return, by executor, the ids of the jobs of these batches, and the names that each may have."""
    found: dict[str, dict[str, set[str]]] = {}
    for batch in submitted(batches):
        found.setdefault(batch.executor, {}).setdefault(str(batch.job_id), set()).add(batch.name)
    return found


def _joined(views: Iterable[QueueView]) -> QueueView:
    from study.executors.jobs import QueueView

    seen = QueueView()
    for view in views:
        seen = seen.joined(view)
    return seen


def cancel(known: Ledger, keys: Iterable[str], runner: Runner | None = None) -> None:
    """Cancel the jobs of these points in which no point is wanted any more. Raises SubmitError.

    Only those that the scheduler has under their batch's name.
    """
    unwanted = known.unwanted_jobs(keys)
    there = _there((known.batches[name] for name in unwanted), runner)
    for name, batches in there.items():
        if batches:
            load(name, runner).cancel({str(batch.job_id): unwanted[batch.name] for batch in batches})


def stop(batches: Iterable[Batch], runner: Runner | None = None) -> int:
    """Cancel the jobs of these batches that wait, and tell those that run to save and end; return of how many.

    Only those that the scheduler has under their batch's name. Raises ValueError.
    """
    there = _there(batches, runner)
    for name, those in there.items():
        if those:
            load(name, runner).stop([str(batch.job_id) for batch in those])
    return sum(map(len, there.values()))


def _there(batches: Iterable[Batch], runner: Runner | None) -> dict[str, list[Batch]]:
    """Return, by executor, the batches of which a job waits or runs under their name. Raises SubmitError."""
    from study.executors.base import SubmitError

    found: dict[str, list[Batch]] = {}
    for batch in submitted(batches):
        found.setdefault(batch.executor, []).append(batch)
    for name, those in found.items():
        seen = load(name, runner).queue(sorted({str(batch.job_id) for batch in those}))
        if not seen.queue_complete or not seen.complete:
            why = "; ".join(seen.problems)
            raise SubmitError(f"no job was cancelled, as it is not known which are there: {why}", True)
        live = {(i.partition("_")[0], job.name) for i, job in seen.jobs.items() if not job.over}
        found[name] = [b for b in those if live.intersection([(b.job_id, b.name), (b.job_id, "")])]
    return found


@cache
def _load(name: str) -> Executor:
    return _made(name, None)


def _made(name: str, runner: Runner | None) -> Executor:
    if name not in EXECUTORS:
        raise ValueError(f"executor={name!r} is not known: there are {', '.join(EXECUTORS)}")
    made: Executor = import_module(EXECUTORS[name]).executor(runner)
    return made
