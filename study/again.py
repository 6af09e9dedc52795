"""What follows from bad ends by itself: they are written into the ledger, and points whose policy says so go on.

A job sees to its own end: it requeues itself where SLURM lets it, else it writes down that its point is to be submitted
again. Ends that no job could write (a dead node, everything killed) are seen by whoever looks next: a command, or
another job as it ends. Points of which nobody knows anything for certain are left alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from study import ledger
from study.attempt import Work, is_time_to_look
from study.checkpoints import reached
from study.classify import Ending, by_slurm
from study.executors import query
from study.executors.local import write_batch
from study.files import locked, read_json
from study.layout import StudyFolder
from study.ledger import Batch, Ledger
from study.observe import Observer, PointStatus
from study.policy import (
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
    verdict,
)
from study.resources import Shape
from study.settling import Outside
from study.standing import NEVER_BEGAN, SAYS
from study.submission import load_submission

NOTHING_FOLLOWS = frozenset({"completed", "paused", "diverged", "cancelled", "interrupted"})
"""Kinds of ends that a job leaves to others: it cannot know who interrupted it."""
SHOWN_KEYS = 3
ACCOUNTING_SECONDS = (0.0, 1.0, 2.0, 4.0)
"""How long a requeued job waits before each time that it asks how its earlier start ended."""
LOCK_SECONDS = 30.0
"""How long a job that looks after others waits for one that submits: nobody may come after it."""


@dataclass(frozen=True)
class Own:
    """The end of a job's own point, as :mod:`study.policy` looks at ends."""

    key: str
    batch: str | None
    attempt: int | None
    kind: str
    nodes: tuple[str, ...] = ()
    state: str = "failed"


def after(work: Work, number: int, ending: Ending, job: Mapping[str, Any], outside: Outside | None = None) -> None:
    """See to what follows from the end of a job's own attempt, then from those of others. For the job, as it ends.

    May end this process: a job that SLURM requeues is killed. Never raises: how the attempt ended is written down, and
    what is left undone here is done by whoever looks next.
    """
    outside = outside or Outside()
    if work.place.executor != "slurm" or work.until is not None or work.unit is not None:
        return
    try:
        if ending.kind not in NOTHING_FOLLOWS:
            _own_end(work, number, ending, job, outside)
        if is_time_to_look(work.study, work.key):
            _look_after_others(work.study, outside)
    except Exception as error:  # whatever it is, the attempt has ended as it did
        outside.say(f"{work.key}: what follows is left to the next command: {type(error).__name__}: {error}")


def _own_end(work: Work, number: int, ending: Ending, job: Mapping[str, Any], outside: Outside) -> None:
    known = ledger.read(work.study)
    if known.current.get(work.key) != work.batch.name or work.key in known.cancelled:
        return
    own = Own(work.key, work.batch.name, number, ending.kind, tuple(job.get("nodes") or ()))
    gb = job.get("memory_gb") or work.resources.get("mem_gb")
    rules = load_submission(work.study).retry.rules()
    memory = {work.key: float(gb)} if gb else None
    ends = new_ends([own], known.ends, rules, outside.clock(), memory=memory, saved=lambda key: reached(work.run))
    if not ends:
        return
    outside.say(f"{work.key}: {ends[0].why}")
    wanted = Change()
    if ends[0].action != "stop":
        wanted = change(_merged(known, ends)[work.key], _left_out(known, ends, rules, outside), rules)
    if ends[0].action in ("again", "elsewhere") and wanted == Change() and may_requeue(work):
        ledger.append(work.study, "ended", **ledger.end_fields(ends[0]))
        if outside.runner(["scontrol", "requeue", work.place.job_id]).code == 0:
            outside.say(f"{work.key}: job {work.place.job_id} is requeued")
            return
        known, ends = ledger.read(work.study), []  # that is written down
    if _write(work.study, known, [own], ends, rules=rules, outside=outside):
        from study.execute import advance

        advance(work.study, outside, ended={work.key})


def may_requeue(work: Work) -> bool:
    """Whether a job may ask SLURM to start it again: not one whose other points still run."""
    return bool(work.resources.get("requeue", True)) and work.batch.pack == 1


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
    from study.execute import advance

    if _pending(folder, known, statuses, rules, outside) is None:
        return advance(folder, outside) if any(s.why == NEVER_BEGAN for s in statuses) else 0
    try:
        with locked(folder.submitting, wait):
            # Looked at anew: what has been seen may have been submitted again since.
            observer = observer or Observer(folder, lambda ids: query.look(ids, outside.runner))
            observer.refresh()
            fresh, known = certain(observer.statuses(), observer.view), ledger.read(folder)
            ends = _pending(folder, known, fresh, rules, outside)
            if ends is None or not _write(folder, known, fresh, ends, rules=rules, outside=outside):
                return 0
    except TimeoutError:
        return 0
    return advance(folder, outside)


def certain(statuses: Sequence[PointStatus], view: query.View) -> list[PointStatus]:
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
    keys = [key for key in due(ours, _merged(known, ends)) if _is_wanted(known, key)]
    ledger.extend(folder, [{"event": "ended", **ledger.end_fields(end)} for end in ends])
    for text in _said(ends):
        say(text)
    for name in dict.fromkeys(known.current[key] for key in keys):
        batch = known.batches[name]
        write_batch(folder, [key for key in keys if known.current[key] == name], batch.code, batch.resources)
    return keys


def account_for_restart(work: Work, number: int, outside: Outside | None = None) -> Ending | None:
    """Write down how the job's earlier start ended where only SLURM knows: preempted, or its node failed.

    For a job that SLURM has requeued by itself. Returns the ending of this start where there have been too many.
    """
    outside = outside or Outside()
    if work.place.executor != "slurm" or not work.place.restart or work.until is not None or number < 2:
        return None
    before = work.run.attempt(number - 1)
    job, ended = read_json(before.job), read_json(before.outcome)
    if job is None or job.get("job_id") != work.place.job_id:
        return None
    if ended is not None and ended.get("kind", ended.get("state")) != "interrupted":
        return None
    kind = _earlier_start(work.place.job_id, outside)
    known = ledger.read(work.study)
    rules = load_submission(work.study).retry.rules()
    if kind is None:
        return None
    ends = [end for end in known.ends.get(work.key, ()) if end.of != (work.batch.name, number - 1)]
    tokens = reached(work.run)
    said = verdict(kind, ends, rules, tokens)
    gb = job.get("memory_gb")
    nodes = tuple(job.get("nodes") or ())
    end = End(work.key, work.batch.name, number - 1, kind, nodes, outside.clock(), said.action, said.why, gb, tokens)
    ledger.append(work.study, "ended", **ledger.end_fields(end))
    stop = said.action == "stop" and rules.kinds[kind].action != "stop"
    return Ending(kind, why=said.why) if stop else None


def _earlier_start(job_id: str, outside: Outside) -> str | None:
    """Return the kind of end of a job's latest start but this one, as accounting tells it; None where it does not.

    Accounting may hear of a start's end after the next has begun: it is asked again for some seconds.
    """
    command = ["sacct", "-n", "-P", "-X", "--duplicates", "--format=State,Start", f"--jobs={job_id}"]
    for seconds in ACCOUNTING_SECONDS:
        outside.sleep(seconds)
        answer = outside.runner(command)
        if answer.code != 0:
            return None
        starts = [line.split("|")[0] for line in answer.out.splitlines() if line.count("|") == 1]
        ended = [word for word in starts if not re.match(r"(RUNNING|PENDING|COMPLETING)", word)]
        if ended:
            words = [word for word in ended if not word.startswith("REQUEUED")]
            kind = by_slurm(words[-1]) if words else None
            return kind if kind in ("preempted", "node_failure") else None
    return None


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


def _write(
    folder: StudyFolder,
    known: Ledger,
    statuses: Iterable[Ended],
    ends: Sequence[End],
    *,
    rules: Rules,
    outside: Outside,
) -> int:
    """Write ends down, and which points are to be submitted again and how; return how many those are."""
    merged = _merged(known, ends)
    ours = [s for s in statuses if s.state in ENDED_BADLY and s.kind and _slurm(known, s.batch)]
    keys = [key for key in due(ours, merged) if _is_wanted(known, key)]
    left_out = _left_out(known, ends, rules, outside) if keys else known.excluded
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


def _left_out(known: Ledger, ends: Sequence[End], rules: Rules, outside: Outside) -> dict[str, str]:
    """Return the nodes that are not to be used now, with why; asks SLURM for the state of those that were blamed."""
    history = {(end.key, *end.of): end for end in [*known.history, *ends]}
    now = outside.clock()
    blamed = evidence(history.values(), {}, replace(rules, exclude_after=1, exclude_most=10**6), now)
    states = node_states(sorted(blamed), outside.runner) if blamed else {}
    return evidence(history.values(), states, rules, now)


def node_states(nodes: Sequence[str], runner: query.Runner) -> dict[str, str]:
    """Return sinfo's word for each of these nodes; none where it gives no answer."""
    answer = runner(["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T"])
    if answer.code != 0:
        return {}
    pairs = (line.split() for line in answer.out.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in nodes}


def _look_after_others(folder: StudyFolder, outside: Outside) -> None:
    """See to ends that no job could write down."""
    folder.looked.touch()
    observer = Observer(folder, lambda ids: query.look(ids, outside.runner))
    observer.refresh()
    follow_up(folder, observer.statuses(), outside, wait=LOCK_SECONDS)


def _merged(known: Ledger, ends: Iterable[End]) -> dict[str, tuple[End, ...]]:
    merged = dict(known.ends)
    for end in ends:
        merged[end.key] = (*(e for e in merged.get(end.key, ()) if e.of != end.of), end)
    return merged


def _slurm(known: Ledger, batch: str | None) -> bool:
    return batch is not None and batch in known.batches and known.batches[batch].executor == "slurm"


def _is_wanted(known: Ledger, key: str) -> bool:
    return key in known.current and key not in known.waiting and key not in known.cancelled
