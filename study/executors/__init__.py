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
    """Return the batches whose jobs a scheduler knows by an id."""
    return [batch for batch in batches if batch.job_id is not None and detached(batch)]


def query(batches: Iterable[Batch], runner: Runner | None = None) -> QueueView:
    """Ask each scheduler once about the jobs of these batches; what none has is passed over."""
    return _joined(load(name, runner).query(ids) for name, ids in _job_ids(batches).items())


def queue(batches: Iterable[Batch], runner: Runner | None = None) -> QueueView:
    """Ask each scheduler once which jobs of these batches wait or run."""
    return _joined(load(name, runner).queue(ids) for name, ids in _job_ids(batches).items())


def _job_ids(batches: Iterable[Batch]) -> dict[str, list[str]]:
    ids: dict[str, set[str]] = {}
    for batch in submitted(batches):
        ids.setdefault(batch.executor, set()).add(str(batch.job_id))
    return {name: sorted(those) for name, those in ids.items()}


def _joined(views: Iterable[QueueView]) -> QueueView:
    from study.executors.jobs import QueueView

    seen = QueueView()
    for view in views:
        seen = seen.joined(view)
    return seen


def cancel(known: Ledger, keys: Iterable[str], runner: Runner | None = None) -> None:
    """Cancel the jobs of these points in which no point is wanted any more. Raises SubmitError."""
    by_executor: dict[str, list[str]] = {}
    for key in keys:
        batch = known.batch(key)
        if batch is not None and batch.job_id is not None and detached(batch):
            by_executor.setdefault(batch.executor, []).append(key)
    for name, those in by_executor.items():
        if indices := known.unwanted_jobs(those):
            load(name, runner).cancel(indices)


@cache
def _load(name: str) -> Executor:
    return _made(name, None)


def _made(name: str, runner: Runner | None) -> Executor:
    if name not in EXECUTORS:
        raise ValueError(f"executor={name!r} is not known: there are {', '.join(EXECUTORS)}")
    made: Executor = import_module(EXECUTORS[name]).executor(runner)
    return made
