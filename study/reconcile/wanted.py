"""Putting the points that a person asks for into the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from study.config.schema import ClusterConfig
from study.executors import query
from study.executors.local import write_batch
from study.planning import sizing
from study.planning.ranks import longest_first, tasks
from study.process import code_snapshot
from study.reconcile.decide import Submit as Due
from study.reconcile.decide import decide
from study.reconcile.services import Services
from study.reconcile.triggers import Submit
from study.records import ledger
from study.records.ledger import Ledger
from study.records.point import Point
from study.records.settings import reference
from study.status import budget
from study.status.observer import Observer
from study.status.states import PointState, PointStatus
from study.storage.layout import StudyFolder
from study.storage.room import check_room

UNDER_WAY = frozenset(
    {PointState.RUNNING, PointState.QUEUED, PointState.WAITING, PointState.COMPLETED, PointState.DIVERGED}
)
"""States of points that somebody else has tried again meanwhile, or that need it no more."""


@dataclass(frozen=True)
class _Seen:
    """The ledger, the points, and how they stand, as if those that are tried again had no jobs."""

    known: ledger.Ledger
    points: Mapping[str, Point]
    statuses: Sequence[PointStatus]


def queue_points(folder: StudyFolder, services: Services, asked: Submit) -> int:
    """Write down which of these points are due; return how many of them are out by that (local runs).

    For the submit lock's holder. Raises ValueError where one could never start, or where all together are over the
    study's budget.
    """
    observer = Observer(folder, lambda batches: query(batches, services.runner))
    observer.refresh()
    statuses = observer.statuses()
    states = {status.key: status.state for status in statuses}
    again = dict.fromkeys(key for key in asked.retried if states.get(key) not in UNDER_WAY)
    # The jobs of points whose end nobody knows are given up by that, and their time with them.
    statuses = [PointStatus(one.key, PointState.PENDING) if one.key in again else one for one in statuses]
    states |= {one.key: one.state for one in statuses}
    _say_what_stays(folder, asked.keys, states, services)
    known = retried(observer.known, again)
    actions = decide(asked.keys, known, states, {}, services.clock())
    keys = [key for action in actions if isinstance(action, Due) for key in action.keys]
    if not keys:
        return 0
    before = [{"event": "retry", "keys": list(again)}] if again else []
    seen = _Seen(known, observer.points, statuses)
    return _queue(folder, keys, asked.cluster, services, before=before, seen=seen)


def retried(known: Ledger, keys: Iterable[str]) -> Ledger:
    """Return the state in which these keys are to be tried again. Pure."""
    again = frozenset(keys)
    current = {key: name for key, name in known.current.items() if key not in again}
    ends = {key: found for key, found in known.ends.items() if key not in again}
    refused = {key: why for key, why in known.refused.items() if key not in again}
    elsewhere = {key: place for key, place in known.elsewhere.items() if key not in again}
    changed = replace(known, current=current, ends=ends, refused=refused, elsewhere=elsewhere)
    return replace(changed, cancelled=known.cancelled - again)


def _say_what_stays(folder: StudyFolder, keys: Sequence[str], states: Mapping[str, str], services: Services) -> None:
    """Say which points are not submitted again because only a person can tell whether they should be."""
    counts = Counter(states.get(key) for key in dict.fromkeys(keys))
    stay = [state for state in (PointState.FAILED, PointState.CANCELLED) if counts[state]]
    if stay:
        said = " and ".join(f"{counts[state]:,} {state}" for state in stay)
        again = f"python -m study retry {reference(folder)} --state {','.join(stay)}"
        services.report(f"{said}: left as they are; {again} tries them again")


def _queue(
    folder: StudyFolder,
    keys: Sequence[str],
    cluster: ClusterConfig,
    services: Services,
    *,
    before: Sequence[ledger.Event],
    seen: _Seen,
) -> int:
    """Write down that these keys are wanted, in one write with the events before it: a full disk takes all or none."""
    points = seen.points
    unknown = [key for key in keys if key not in points]
    if unknown:
        raise ValueError(f"study {folder.name} has no point {unknown[0]}: append its points before starting them")
    check_room(folder.path)
    version = code_snapshot.take(folder, cluster.code)
    ordered = longest_first(keys, points)
    executor = services.executor(cluster.executor)
    if not executor.detached:
        about = {"tasks": tasks(cluster), "code": cluster.code, "warm": cluster.warm}
        write_batch(folder, ordered, version.id, about, before)
        return len(ordered)
    known = seen.known.waiting
    asked = {"executor": executor.name, "code": version.id, "parallel": cluster.array_parallelism}
    events = list(before)
    site = executor.site(folder.limits, services.clock())
    sized = sizing.job_specs(folder, [points[key] for key in ordered], cluster, site)
    wanted = [(one.shape, len(one.keys)) for one in sized]
    others = [known[key] for key in sorted(known.keys() - set(ordered))]
    budget.check(folder, wanted, others, (points, seen.statuses), services.runner, known=seen.known)
    for one in sized:
        resources = one.shape.record()
        new = [key for key in one.keys if key not in known or known[key].resources != resources]
        if new:
            events.append({"event": "waiting", "keys": new, "resources": resources, **asked})
    ledger.extend(folder, events)
    return 0
