"""What a job does once its attempt ended: the end is recorded, and what follows from it is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.executors import query
from study.failures.kinds import Ending, by_slurm
from study.failures.retry_policy import Change, End, change, new_ends, verdict
from study.job.attempt import Work
from study.job.peers import is_time_to_look
from study.reconcile.retry import ACCOUNTING_SECONDS, LOCK_SECONDS, follow_up, merged_ends, nodes_left_out, write_ends
from study.reconcile.two_phase import Outside
from study.records import ledger
from study.records.checkpoints import reached
from study.records.settings import load_submission
from study.status.observer import Observer
from study.storage.files import read_json
from study.storage.layout import StudyFolder

NOTHING_FOLLOWS = frozenset({"completed", "paused", "diverged", "cancelled", "interrupted"})
"""Kinds of ends that a job leaves to others: it cannot know who interrupted it."""


@dataclass(frozen=True)
class Own:
    """The end of a job's own point, as :mod:`study.failures.retry_policy` looks at ends."""

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
        wanted = change(merged_ends(known, ends)[work.key], nodes_left_out(known, ends, rules, outside), rules)
    if ends[0].action in ("again", "elsewhere") and wanted == Change() and may_requeue(work):
        ledger.append(work.study, "ended", **ledger.end_fields(ends[0]))
        if outside.runner(["scontrol", "requeue", work.place.job_id]).code == 0:
            outside.say(f"{work.key}: job {work.place.job_id} is requeued")
            return
        known, ends = ledger.read(work.study), []  # that is written down
    if write_ends(work.study, known, [own], ends, rules=rules, outside=outside):
        from study.reconcile.reconcile import advance

        advance(work.study, outside, ended={work.key})


def may_requeue(work: Work) -> bool:
    """Whether a job may ask SLURM to start it again: not one whose other points still run."""
    return bool(work.resources.get("requeue", True)) and work.batch.pack == 1


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


def _look_after_others(folder: StudyFolder, outside: Outside) -> None:
    """See to ends that no job could write down."""
    folder.looked.touch()
    observer = Observer(folder, lambda batches: query(batches, outside.runner))
    observer.refresh()
    follow_up(folder, observer.statuses(), outside, wait=LOCK_SECONDS)
