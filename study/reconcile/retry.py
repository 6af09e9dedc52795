"""What follows from bad ends by itself: they are written into the ledger, and points whose policy says so go on.

A job sees to its own end: it requeues itself where SLURM lets it, else it writes down that its point is to be submitted
again. Ends that no job could write (a dead node, everything killed) are seen by whoever looks next: a command, or
another job as it ends. Points of which nobody knows anything for certain are left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from study.executors import query
from study.executors.base import QueueView, Runner
from study.executors.job_spec import Shape
from study.executors.local import write_batch
from study.failures.retry_policy import (
    ENDED_BADLY,
    Change,
    End,
    Ended,
    Rules,
    adapt,
    change,
    due,
    evidence,
    new_ends,
)
from study.reconcile.two_phase import Outside
from study.records import ledger
from study.records.checkpoints import reached
from study.records.ledger import Batch, Ledger
from study.records.settings import load_submission
from study.status.observer import Observer
from study.status.states import NEVER_BEGAN, SAYS, PointStatus
from study.storage.files import locked
from study.storage.layout import StudyFolder

SHOWN_KEYS = 3
ACCOUNTING_SECONDS = (0.0, 1.0, 2.0, 4.0)
"""How long a requeued job waits before each time that it asks how its earlier start ended."""
LOCK_SECONDS = 30.0
"""How long a job that looks after others waits for one that submits: nobody may come after it."""


def follow_up(
    folder: StudyFolder,
    statuses: Sequence[PointStatus],
    outside: Outside | None = None,
    observer: Observer | None = None,
    wait: float = 0.0,
) -> int:
    """Write down the ends among what a command has just seen, and submit what is due again; return how many went out.

    Costs nothing where nothing is due. Does nothing where another process submits for longer than `wait` seconds: that
    is left to the next look. observer: who saw them, and looks again. Branches that SLURM gave up with their parent's
    job are submitted again as well.
    """
    outside = outside or Outside()
    known = ledger.read(folder)
    rules = load_submission(folder).retry.rules()
    from study.reconcile.reconcile import advance

    if _pending(folder, known, statuses, rules, outside) is None:
        return advance(folder, outside) if any(s.why == NEVER_BEGAN for s in statuses) else 0
    try:
        with locked(folder.submitting, wait):
            # Looked at anew: what has been seen may have been submitted again since.
            observer = observer or Observer(folder, lambda batches: query(batches, outside.runner))
            observer.refresh()
            fresh, known = certain(observer.statuses(), observer.view), ledger.read(folder)
            ends = _pending(folder, known, fresh, rules, outside)
            if ends is None or not write_ends(folder, known, fresh, ends, rules=rules, outside=outside):
                return 0
    except TimeoutError:
        return 0
    return advance(folder, outside)


def certain(statuses: Sequence[PointStatus], view: QueueView) -> list[PointStatus]:
    """Return the statuses from which something may follow.

    None where squeue did not answer in full: a job may have been requeued. Where sacct did not, those of which a file
    says how they ended, and not those of which only a part of its answer does.
    """
    if not view.queue_complete:
        return []
    return [s for s in statuses if view.complete or not s.why.startswith(SAYS)]


def carry_on(
    observer: Observer, statuses: list[PointStatus], say: Callable[[str], None] = lambda text: None
) -> list[PointStatus]:
    """See to what follows from what was just seen, in passing; return the statuses as they are then.

    For commands that look at a study: nothing stops it, and it costs nothing where no point ended badly.
    """
    if not any((s.state in ENDED_BADLY and s.kind) or s.why == NEVER_BEGAN for s in statuses):
        return statuses
    before = observer.known
    try:
        follow_up(observer.folder, statuses, Outside(say=say), observer)
    except (OSError, ValueError) as error:
        say(str(error))
    if observer.known is before:
        return statuses
    observer.refresh()
    return observer.statuses()


def again_here(
    folder: StudyFolder, known: Ledger, statuses: Sequence[PointStatus], say: Callable[[str], None]
) -> list[str]:
    """Write down bad ends of local runs, and a new try of those whose policy says so; return the keys of these.

    For the one process that starts the study's local runs. Runs that were told to stop are not its business: whoever
    told them, by Ctrl-C or otherwise, wants them to stand still.
    """
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind not in ("", "interrupted")]
    ours = [s for s in ours if known.current.get(s.key) == s.batch and not _slurm(known, s.batch)]
    if not ours:
        return []
    ends = new_ends(
        ours,
        known.ends,
        load_submission(folder).retry.rules().here(),
        time.time(),
        saved=lambda key: reached(folder.run(key)),
    )
    keys = [key for key in due(ours, merged_ends(known, ends)) if _is_wanted(known, key)]
    ledger.extend(folder, [{"event": "ended", **ledger.end_fields(end)} for end in ends])
    for text in _said(ends):
        say(text)
    for name in dict.fromkeys(known.current[key] for key in keys):
        batch = known.batches[name]
        write_batch(folder, [key for key in keys if known.current[key] == name], batch.code, batch.resources)
    return keys


def _pending(
    folder: StudyFolder, known: Ledger, statuses: Sequence[PointStatus], rules: Rules, outside: Outside
) -> list[End] | None:
    """Return the ends to be written down; None where there are none and nothing is due either."""
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind and _slurm(known, s.batch)]
    memory = {s.key: float(gb) for s in ours if (gb := known.batches[s.batch or ""].resources.get("mem_gb"))}
    ends = new_ends(ours, known.ends, rules, outside.clock(), memory=memory, saved=lambda key: reached(folder.run(key)))
    if ends or any(_is_wanted(known, key) for key in due(ours, known.ends)):
        return ends
    return None


def write_ends(
    folder: StudyFolder,
    known: Ledger,
    statuses: Iterable[Ended],
    ends: Sequence[End],
    *,
    rules: Rules,
    outside: Outside,
) -> int:
    """Write ends down, and which points are to be submitted again and how; return how many those are."""
    merged = merged_ends(known, ends)
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind and _slurm(known, s.batch)]
    keys = [key for key in due(ours, merged) if _is_wanted(known, key)]
    left_out = nodes_left_out(known, ends, rules, outside) if keys else known.excluded
    parallel = load_submission(folder).cluster.array_parallelism
    groups: dict[tuple[str, Change], list[str]] = {}
    for key in keys:
        groups.setdefault((known.current[key], change(merged[key], left_out, rules)), []).append(key)
    events: list[dict[str, Any]] = [{"event": "ended", **ledger.end_fields(end)} for end in ends]
    if left_out != known.excluded:
        until = round(outside.clock() + 3600 * rules.exclude_hours)
        events.append({"event": "excluded", "nodes": dict(left_out), "until": until})
    for (name, wanted), its in groups.items():
        batch = known.batches[name]
        shape = adapt(_base(batch, known), wanted)
        asked = {"resources": shape.record(), "code": batch.code, "parallel": parallel}
        events.append({"event": "waiting", "name": name, "keys": its, **asked})
    ledger.extend(folder, events)
    for text in _said(ends):
        outside.say(text)
    return len(keys)


def _said(ends: Sequence[End]) -> list[str]:
    """Return what follows from these ends, one line a reason: hundreds of points may have ended alike."""
    groups: dict[str, list[str]] = {}
    for end in ends:
        groups.setdefault(end.why, []).append(end.key)
    lines = []
    for why, keys in groups.items():
        more = f" and {len(keys) - SHOWN_KEYS:,} more" if len(keys) > SHOWN_KEYS else ""
        lines.append(f"{' '.join(keys[:SHOWN_KEYS])}{more}: {why}")
    return lines


def _base(batch: Batch, known: Ledger) -> Shape:
    """Return what a batch asked, but for the nodes that were left out on evidence: that grows old."""
    shape = Shape.read(batch.resources)
    exclude = shape.exclude or ""
    while exclude and exclude.rpartition(",")[2] in known.ever_excluded:
        exclude = exclude.rpartition(",")[0]
    return replace(shape, exclude=exclude or None, dependency=None)


def nodes_left_out(known: Ledger, ends: Sequence[End], rules: Rules, outside: Outside) -> dict[str, str]:
    """Return the nodes that are not to be used now, with why; asks SLURM for the state of those that were blamed."""
    history = {(end.key, *end.of): end for end in [*known.history, *ends]}
    now = outside.clock()
    blamed = evidence(history.values(), {}, replace(rules, exclude_after=1, exclude_most=10**6), now)
    states = node_states(sorted(blamed), outside.runner) if blamed else {}
    return evidence(history.values(), states, rules, now)


def node_states(nodes: Sequence[str], runner: Runner) -> dict[str, str]:
    """Return sinfo's word for each of these nodes; none where it gives no answer."""
    answer = runner(["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T"])
    if answer.code != 0:
        return {}
    pairs = (line.split() for line in answer.out.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in nodes}


def merged_ends(known: Ledger, ends: Iterable[End]) -> dict[str, tuple[End, ...]]:
    """Return the bad ends of every point, these among them; an attempt's newer end replaces its older one."""
    merged = dict(known.ends)
    for end in ends:
        merged[end.key] = (*(e for e in merged.get(end.key, ()) if e.of != end.of), end)
    return merged


def _slurm(known: Ledger, batch: str | None) -> bool:
    return batch is not None and batch in known.batches and known.batches[batch].executor == "slurm"


def _is_wanted(known: Ledger, key: str) -> bool:
    return key in known.current and key not in known.waiting and key not in known.cancelled
