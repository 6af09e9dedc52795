"""Failures and their retries: a failure is written into the ledger, and the retry policy decides what follows.

A job handles its own failure: it requeues itself where SLURM lets it, else it queues its point for another submission.
Failures that no job could record (a dead node, SIGKILL) are recorded by the next command, or by another job as it ends.
Points whose state is unknown are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from study.executors import detached
from study.executors.job_spec import JobSpec
from study.executors.jobs import QueueView
from study.executors.local import write_batch
from study.failures.kinds import AttemptState, Kind
from study.failures.retry_policy import (
    ENDED_BADLY,
    Action,
    Change,
    EndedPoint,
    RecordedFailure,
    RetryRules,
    adapt,
    change,
    due,
    evidence,
    new_ends,
)
from study.reconcile.services import Services
from study.records import ledger
from study.records.bad_ends import end_fields
from study.records.checkpoints import reached
from study.records.ledger import Batch, Ledger
from study.records.settings import load_submission
from study.status.observer import Observer
from study.status.states import SAYS, PointStatus
from study.storage.files import locked
from study.storage.layout import StudyFolder

SHOWN_KEYS = 3


@dataclass(frozen=True)
class FailedAttempt:
    """How a queued job's own attempt has ended, as :mod:`study.failures.retry_policy` looks at ends.

    memory_gb: what the node gave it. requeue: the job that the scheduler may be asked to start again; None: not one
    whose other points still run, or where the site does not allow it.
    """

    key: str
    batch: str | None
    attempt: int | None
    kind: Kind
    nodes: tuple[str, ...] = ()
    memory_gb: float | None = None
    requeue: str | None = None
    state: str = AttemptState.FAILED


def record(
    folder: StudyFolder, services: Services, observer: Observer, statuses: Sequence[PointStatus], wait: float = 0.0
) -> int:
    """Write down the ends among what `observer` has just seen; return how many points are to be submitted again.

    Cheap where nothing is due. Does nothing where another process holds the submit lock for longer than `wait` seconds:
    the next call does it.
    """
    known, rules = ledger.read(folder), load_submission(folder).retry.rules()
    if _pending(folder, known, statuses, rules, services) is None:
        return 0
    try:
        with locked(folder.submitting, wait):
            # Looked at anew: what has been seen may have been submitted again since.
            observer.refresh()
            fresh, known = certain(observer.statuses(), observer.view), ledger.read(folder)
            ends = _pending(folder, known, fresh, rules, services)
            return 0 if ends is None else _write(folder, known, fresh, ends, rules=rules, services=services)
    except TimeoutError:
        return 0


def record_own(folder: StudyFolder, services: Services, failed: FailedAttempt) -> bool:
    """Write down how a job's own attempt has ended; return whether its point is to be submitted again.

    Where that may go on as it is, the scheduler is asked to start the job again, which then kills this process.
    """
    known = ledger.read(folder)
    if known.current.get(failed.key) != failed.batch or failed.key in known.cancelled:
        return False
    rules = load_submission(folder).retry.rules()
    ends = ends_of(folder, services, known, failed, rules)
    if not ends:
        return False
    services.report(f"{failed.key}: {ends[0].why}")
    wanted = Change()
    if ends[0].action != Action.STOP:
        wanted = change(merged_ends(known, ends)[failed.key], nodes_left_out(known, ends, rules, services), rules)
    if ends[0].action in (Action.AGAIN, Action.ELSEWHERE) and wanted == Change() and failed.requeue is not None:
        ledger.append(folder, "ended", **end_fields(ends[0]))
        if services.executor(known.batches[failed.batch or ""].executor).requeue(failed.requeue):
            services.report(f"{failed.key}: job {failed.requeue} is requeued")
            return False
        known, ends = ledger.read(folder), []  # that is written down
    return _write(folder, known, [failed], ends, rules=rules, services=services) > 0


def ends_of(
    folder: StudyFolder, services: Services, known: Ledger, failed: FailedAttempt, rules: RetryRules
) -> list[RecordedFailure]:
    """Return the end of one attempt and what follows from it; none where the ledger has it."""
    memory = {failed.key: failed.memory_gb} if failed.memory_gb else None
    saved = partial(_saved, folder)
    return new_ends([failed], known.ends, rules, services.clock(), memory=memory, saved=saved)


def certain(statuses: Sequence[PointStatus], view: QueueView) -> list[PointStatus]:
    """Return the statuses from which something may follow.

    None where squeue did not answer in full: a job may have been requeued. Where sacct did not, those of which a file
    says how they ended, and not those of which only a part of its answer does.
    """
    if not view.queue_complete:
        return []
    return [s for s in statuses if view.complete or not s.why.startswith(SAYS)]


def record_local(folder: StudyFolder, services: Services, known: Ledger, statuses: Sequence[PointStatus]) -> list[str]:
    """Write down bad ends of local runs, and a new try of those whose policy says so; return the keys of these.

    For the one process that starts the study's local runs. Runs that were asked to stop, by Ctrl-C or otherwise, are
    not retried.
    """
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind not in (Kind.NONE, Kind.INTERRUPTED)]
    ours = [s for s in ours if s.batch and known.current.get(s.key) == s.batch and not _is_detached(known, s.batch)]
    if not ours:
        return []
    rules = load_submission(folder).retry.rules().here()
    ends = new_ends(ours, known.ends, rules, services.clock(), saved=partial(_saved, folder))
    keys = [key for key in due(ours, merged_ends(known, ends)) if _is_wanted(known, key)]
    ledger.extend(folder, [{"event": "ended", **end_fields(end)} for end in ends])
    for text in _summary(ends):
        services.report(text)
    for name in dict.fromkeys(known.current[key] for key in keys):
        batch = known.batches[name]
        write_batch(folder, [key for key in keys if known.current[key] == name], batch.code, batch.resources)
    return keys


def _pending(
    folder: StudyFolder, known: Ledger, statuses: Sequence[PointStatus], rules: RetryRules, services: Services
) -> list[RecordedFailure] | None:
    """Return the ends to be written down; None where there are none and nothing is due either."""
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind and _is_detached(known, s.batch)]
    memory = {s.key: float(gb) for s in ours if (gb := known.batches[s.batch or ""].resources.get("mem_gb"))}
    ends = new_ends(ours, known.ends, rules, services.clock(), memory=memory, saved=partial(_saved, folder))
    if ends or any(_is_wanted(known, key) for key in due(ours, known.ends)):
        return ends
    return None


def _write(
    folder: StudyFolder,
    known: Ledger,
    statuses: Iterable[EndedPoint],
    ends: Sequence[RecordedFailure],
    *,
    rules: RetryRules,
    services: Services,
) -> int:
    """Write ends down, and which points are to be submitted again and how; return how many those are."""
    merged = merged_ends(known, ends)
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind and _is_detached(known, s.batch)]
    keys = [key for key in due(ours, merged) if _is_wanted(known, key)]
    left_out = nodes_left_out(known, ends, rules, services) if keys else known.excluded
    cluster = load_submission(folder).cluster
    parallel = cluster.array_parallelism
    groups: dict[tuple[str, Change], list[str]] = {}
    for key in keys:
        groups.setdefault((known.current[key], change(merged[key], left_out, rules)), []).append(key)
    events: list[dict[str, Any]] = [{"event": "ended", **end_fields(end)} for end in ends]
    if left_out != known.excluded:
        until = round(services.clock() + 3600 * rules.exclude_hours)
        events.append({"event": "excluded", "nodes": dict(left_out), "until": until})
    for (name, wanted), its in groups.items():
        batch = known.batches[name]
        shape = adapt(_base(batch, known, cluster.exclude), wanted)
        asked = {"resources": shape.record(), "executor": batch.executor, "code": batch.code, "parallel": parallel}
        events.append({"event": "waiting", "name": name, "keys": its, **asked})
    ledger.extend(folder, events)
    for text in _summary(ends):
        services.report(text)
    return len(keys)


def _summary(ends: Sequence[RecordedFailure]) -> list[str]:
    """Return what follows from these ends, one line a reason: hundreds of points may have ended alike."""
    groups: dict[str, list[str]] = {}
    for end in ends:
        groups.setdefault(end.why, []).append(end.key)
    lines = []
    for why, keys in groups.items():
        more = f" and {len(keys) - SHOWN_KEYS:,} more" if len(keys) > SHOWN_KEYS else ""
        lines.append(f"{' '.join(keys[:SHOWN_KEYS])}{more}: {why}")
    return lines


def _base(batch: Batch, known: Ledger, own: str | None) -> JobSpec:
    """Return the resources of a batch without the nodes that were excluded on evidence, which expires.

    own: `cluster.exclude`, which stays, whatever the evidence has named.
    """
    shape = JobSpec.read(batch.resources)
    exclude = shape.exclude or ""
    while exclude and exclude != own and exclude.rpartition(",")[2] in known.ever_excluded:
        exclude = exclude.rpartition(",")[0]
    return replace(shape, exclude=exclude or None, dependency=None)


def nodes_left_out(
    known: Ledger, ends: Sequence[RecordedFailure], rules: RetryRules, services: Services
) -> dict[str, str]:
    """Return the nodes that are not to be used now, with why; asks SLURM for the state of those that were blamed."""
    history = {(end.key, *end.of): end for end in [*known.history, *ends]}
    now = services.clock()
    blamed = evidence(history.values(), {}, replace(rules, exclude_after=1, exclude_most=10**6), now)
    # Nodes that one scheduler does not know by these names it leaves out of its answer.
    names = sorted({batch.executor for batch in known.batches.values() if detached(batch)}) if blamed else []
    states: dict[str, str] = {}
    for name in names:
        states |= services.executor(name).node_states(sorted(blamed))
    return evidence(history.values(), states, rules, now)


def merged_ends(known: Ledger, ends: Iterable[RecordedFailure]) -> dict[str, tuple[RecordedFailure, ...]]:
    """Return the bad ends of every point, these among them; an attempt's newer end replaces its older one."""
    merged = dict(known.ends)
    for end in ends:
        merged[end.key] = (*(e for e in merged.get(end.key, ()) if e.of != end.of), end)
    return merged


def _saved(folder: StudyFolder, key: str) -> int:
    return reached(folder.run(key))


def _is_detached(known: Ledger, batch: str | None) -> bool:
    return detached(known.batches.get(batch or ""))


def _is_wanted(known: Ledger, key: str) -> bool:
    return key in known.current and key not in known.waiting and key not in known.cancelled
