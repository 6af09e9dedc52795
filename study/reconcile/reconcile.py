"""Submitting: a step that may be killed anywhere and taken again. Nothing is submitted twice, nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from study.config.schema import ClusterConfig
from study.executors import query
from study.executors.local import write_batch
from study.executors.slurm import site as room
from study.planning import sizing
from study.planning.ranks import longest_first, tasks
from study.process import code_snapshot
from study.reconcile import dependencies, queue
from study.reconcile.decide import Submit, decide
from study.reconcile.queue import as_the_last
from study.reconcile.two_phase import Outside, settle
from study.records import ledger, lineage
from study.records.points import load_points
from study.records.settings import reference
from study.status import budget
from study.status.observer import Observer
from study.status.states import NEVER_BEGAN
from study.storage.files import locked, read_json
from study.storage.layout import StudyFolder

SUBMITTER_SECONDS = 120.0


def start(folder: StudyFolder, keys: Sequence[str], cluster: ClusterConfig, outside: Outside | None = None) -> int:
    """Submit what is wanted and not yet submitted, and settle what an earlier process left unclear. Idempotent.

    Returns how many points were submitted by this call; what the scheduler has no room for waits in the ledger.
    Points that were interrupted or stopped by a time limit are submitted again and resume; failed, diverged and
    cancelled ones stay as they are until they are retried. For local runs this only writes down what
    :func:`study.watch.follow.follow` starts. Raises ValueError where the scheduler refuses or gives no answer.
    """
    outside = outside or Outside()
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder.submitting, SUBMITTER_SECONDS):
            _settle(folder, outside)
            observer = Observer(folder, lambda batches: query(batches, outside.runner))
            observer.refresh()
            states = {status.key: status.state for status in observer.statuses()}
            _say_what_stays(folder, keys, states, outside)
            due = [a.keys for a in decide(keys, ledger.read(folder), states, {}, outside.clock()) if type(a) is Submit]
            submitted = _want(folder, due[0], cluster, outside) if due else 0
            return submitted + _feed(folder, outside)
    except TimeoutError:
        raise _busy(folder) from None


def resume(folder: StudyFolder, cluster: ClusterConfig, outside: Outside | None = None) -> int:
    """Submit every point of the study that is due; return how many went out. Raises ValueError as :func:`start`."""
    return start(folder, list(load_points(folder)), cluster, outside)


def reconcile(folder: StudyFolder, outside: Outside | None = None, *, force: bool = False) -> int:
    """Settle what is unclear and submit what waits; return how many points went out.

    force: also give up submissions of which the scheduler says nothing. Raises ValueError as :func:`start`.
    """
    outside = outside or Outside()
    try:
        with locked(folder.submitting, SUBMITTER_SECONDS):
            _settle(folder, outside, force=force)
            return _feed(folder, outside)
    except TimeoutError:
        raise _busy(folder) from None


def advance(
    folder: StudyFolder, outside: Outside | None = None, ended: Collection[str] = frozenset(), every: float = 0.0
) -> int:
    """Submit what waits in the ledger as far as there is room; return how many points went out.

    Cheap where nothing waits. It never waits for another process that submits, which does the same. `ended`: points
    of the job that calls this as it ends: jobs do it once in a while, and the last ones always. `every`: not again
    within this time after anybody did it [s]. Raises ValueError where the scheduler refuses for good or gives no
    answer to a submission.
    """
    outside = outside or Outside()
    state = ledger.read(folder)
    if not _is_work_left(state):
        return 0
    if not ended:
        return (_try(folder, outside, sparing=False) or 0) if queue.is_time(folder, outside.clock(), every) else 0
    if not queue.others_live(folder, state, ended, outside.runner):
        is_last, send = partial(_is_last, folder, outside, ended), partial(_try, folder, outside, sparing=True)
        return as_the_last(folder, outside, is_last, send)
    every = queue.pace(folder, state, ended)
    if queue.is_time(folder, outside.clock(), every) or _opens(folder, state, ended):
        return _try(folder, outside, sparing=True) or 0
    return 0


def _is_last(folder: StudyFolder, outside: Outside, ended: Collection[str]) -> bool:
    """Whether there is something to submit, and no job of the study left that would do it as it ends."""
    known = ledger.read(folder)
    return _is_work_left(known) and not queue.others_live(folder, known, ended, outside.runner)


def _is_work_left(known: ledger.Ledger) -> bool:
    return bool(known.waiting or known.unclear or dependencies.pending(known))


def _try(folder: StudyFolder, outside: Outside, *, sparing: bool) -> int | None:
    """Settle and submit what waits; None where another process is at it."""
    try:
        with locked(folder.submitting, 0):
            settle(folder, outside, patient=False)
            return _feed(folder, outside, sparing=sparing)
    except TimeoutError:
        return None


def _settle(folder: StudyFolder, outside: Outside, *, force: bool = False) -> None:
    for left in settle(folder, outside, force=force):
        outside.say(f"{left.name}: left as it is: {left.why}")


def _busy(folder: StudyFolder) -> ValueError:
    return ValueError(
        f"study {folder.name}: another process has been submitting it for {SUBMITTER_SECONDS:.0f} s "
        f"(it holds {folder.submitting}): look at it, then give the command again"
    )


def _say_what_stays(folder: StudyFolder, keys: Sequence[str], states: Mapping[str, str], outside: Outside) -> None:
    """Say which points are not submitted again because only a person can tell whether they should be."""
    counts = Counter(states.get(key) for key in dict.fromkeys(keys))
    stay = [state for state in ("failed", "cancelled") if counts[state]]
    if stay:
        said = " and ".join(f"{counts[state]:,} {state}" for state in stay)
        again = f"python -m study retry {reference(folder)} --state {','.join(stay)}"
        outside.say(f"{said}: left as they are; {again} tries them again")


def _feed(folder: StudyFolder, outside: Outside, *, sparing: bool = False) -> int:
    """Submit what waits and fits, parents before the branches whose jobs wait for them; return how many went out."""
    _take_back(folder, outside)
    out = 0
    while True:
        after, held = _relations(folder)
        sent = queue.feed(folder, outside, held, after, sparing=sparing)
        out += sent
        if not sent or not held:
            return out


def _take_back(folder: StudyFolder, outside: Outside) -> None:
    """Let points wait again whose jobs SLURM gave up because their parent's job did not succeed."""
    known = ledger.read(folder)
    if not dependencies.pending(known):
        return
    observer = Observer(folder, lambda batches: query(batches, outside.runner))
    observer.refresh()
    stranded = [s.key for s in observer.statuses() if s.why == NEVER_BEGAN]
    events = []
    for key in stranded:
        batch = known.batches[known.current[key]]
        resources = {name: value for name, value in batch.resources.items() if name != "dependency"}
        asked = {"resources": resources, "code": batch.code, "parallel": None}
        events.append({"event": "waiting", "name": batch.name, "keys": [key], **asked})
    ledger.extend(folder, events)


def _want(folder: StudyFolder, keys: Sequence[str], cluster: ClusterConfig, outside: Outside) -> int:
    """Write down that these points are to be submitted; return how many of them are out by that (local runs).

    Raises ValueError where one could never start, or where all together are over the study's budget.
    """
    points = load_points(folder)
    unknown = [key for key in keys if key not in points]
    if unknown:
        raise ValueError(f"study {folder.name} has no point {unknown[0]}: append its points before starting them")
    version = code_snapshot.take(folder, cluster.code)
    ordered = longest_first(keys, points)
    if cluster.executor == "local":
        write_batch(folder, ordered, version.id, {"tasks": tasks(cluster), "code": cluster.code})
        return len(ordered)
    known = ledger.read(folder).waiting
    asked = {"code": version.id, "parallel": cluster.array_parallelism}
    events = []
    site = room.site(outside.runner, folder.limits, outside.clock())
    sized = sizing.allot(folder, [points[key] for key in ordered], cluster, site)
    wanted = [(one.shape, len(one.keys)) for one in sized]
    budget.check(folder, wanted, sorted(known.keys() - set(ordered)), outside.runner)
    for one in sized:
        resources = one.shape.record()
        new = [key for key in one.keys if key not in known or known[key].resources != resources]
        if new:
            events.append({"event": "waiting", "keys": new, "resources": resources, **asked})
    ledger.extend(folder, events)
    return 0


def _relations(folder: StudyFolder) -> tuple[dict[str, str], dict[str, str]]:
    """Return what points have to wait for whose parent has not completed: its job, or, where it has none, why."""
    if not folder.points.exists() or b'"parent":"' not in folder.points.read_bytes():
        return {}, {}
    points, known = load_points(folder), ledger.read(folder)
    completed = {key for key in lineage.parents(points.values()) if _completed(folder, key)}
    waiting = lineage.waiting(points, completed)
    over = {parent for parent in set(waiting.values()) if queue.has_ended(folder, parent, known)}
    return dependencies.split(waiting, known, over)


def _completed(folder: StudyFolder, key: str) -> bool:
    outcome = read_json(folder.run(key).outcome)
    return outcome is not None and outcome.get("state", "completed") == "completed"


def _opens(folder: StudyFolder, state: ledger.Ledger, ended: Collection[str]) -> bool:
    """Whether a point that ended lets others go out that waited for it."""
    return bool(state.waiting) and any(lineage.has_branches(folder, key) for key in ended)


LOOK_SECONDS = 10.0
"""How often commands that look at a study do, all of them together."""


def send_waiting(folder: StudyFolder, say: Callable[[str], None] = lambda text: None) -> None:
    """Submit what waits and fits, in passing: what a command that looks at a study does first. Nothing stops it."""
    state = ledger.read(folder)
    if not (state.waiting or state.unclear):
        return
    try:
        advance(folder, Outside(say=say), every=LOOK_SECONDS)
    except (OSError, ValueError) as error:
        say(str(error))
