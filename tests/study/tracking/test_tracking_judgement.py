"""MLflow shows the state that `status` says: both judge by the same evidence."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from study.executors.jobs import Job, JobState, QueueView
from study.records import ledger
from study.status.observer import Observer
from study.storage.files import RunLock, write_json
from study.storage.layout import RunFolder
from study.tracking.facts import read_facts
from study.tracking.mapping import of_search
from tests.study.support.studies import make_study

SILENT = QueueView(complete=False, problems=("squeue: no answer in 30 s",), queue_complete=False)
VIEWS = {
    "silent": SILENT,
    "nothing known": QueueView(),
    "requeued": QueueView({"7_0": Job(JobState.QUEUED, "PENDING", "BeginTime")}),
    "node failed": QueueView({"7_0": Job(JobState.NODE_FAILURE, "NODE_FAIL", "exit code 0:0")}),
    "time limit": QueueView({"7_0": Job(JobState.TIME_LIMIT, "TIMEOUT", "exit code 0:0")}),
    "cancelled": QueueView({"7_0": Job(JobState.CANCELLED, "CANCELLED by 0", "exit code 0:15")}),
    "left to another": QueueView({"7_0": Job(JobState.FAILED, "FAILED", "exit code 76:0")}),
    "sacct silent": QueueView({}, False, ("sacct: away",), queue_complete=True),
}
JOB = {"name": "s.a", "job_id": "7_0"}
ENDS = (None, "interrupted", "preempted", "failed", "time_limit")


def write_attempt(run: RunFolder, job: Mapping[str, str], end: Mapping[str, Any] | None) -> None:
    """Write the files of a run's first attempt: its job, and how it ended where it has."""
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    write_json(attempt.job, {"executor": "slurm", "started": time.time(), **job})
    if end is not None:
        write_json(attempt.outcome, {"ended": time.time(), "seconds": 1.0, "error": None, **end})


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("held", [False, True])
def test_both_judge_alike(tmp_path: Path, view: str, end: str | None, held: bool) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (key,) = keys.values()
    ledger.append(study, "intent", name="s.a", executor="slurm", keys=[key], resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")
    run = study.run(key)
    write_attempt(run, JOB, None if end is None else {"state": end})
    if held:
        run.left_to.write_text(json.dumps({"name": "s.a", "job_id": "7_0", "time": time.time() + 5}))
    observer = Observer(study, lambda ids: VIEWS[view])
    observer.refresh()
    lock = RunLock(run.lock)
    assert lock.acquire()
    for let_go in (False, True):
        if let_go:
            lock.close()
        (shown,) = observer.statuses()
        facts = read_facts(observer, key)
        assert facts is not None
        assert facts.state == shown.state, (facts.why, shown.why)


def test_a_silent_squeue_makes_no_interruption(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (key,) = keys.values()
    ledger.append(study, "intent", name="s.a", executor="slurm", keys=[key], resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")
    write_attempt(study.run(key), JOB, {"state": "interrupted"})
    facts = read_facts(Observer(study, view=SILENT), key)
    assert facts is not None and facts.state == "unknown" and "may have requeued it" in facts.why


def test_both_say_why_a_run_that_is_tried_again_waits(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (key,) = keys.values()
    write_attempt(study.run(key), JOB, {"state": "time_limit"})
    ledger.append(study, "waiting", keys=[key], resources={}, code=None, parallel=None)
    write_json(study.queue_note, {"time": 0.0, "why": "MaxJobCount is used up", "waiting": 1})
    observer = Observer(study)
    facts, (shown,) = read_facts(observer, key), observer.statuses()
    assert facts is not None and (facts.state, facts.why) == (shown.state, shown.why)
    assert shown.why == "queued later: MaxJobCount is used up"


@pytest.mark.parametrize("begun", [True, False])
def test_both_tell_the_end_of_the_present_job_and_not_an_earlier_ones(tmp_path: Path, begun: bool) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (key,) = keys.values()
    for number, name in enumerate(("s.a", "s.b"), 7):
        ledger.append(study, "intent", name=name, executor="slurm", keys=[key], resources={}, code=None)
        ledger.append(study, "submitted", name=name, job_id=str(number))
    said = {"headline": "rank 1: KeyError: 'x'", "error": "rank 1: Traceback\nKeyError: 'x'", "rank": 1}
    mine = {"name": "s.b", "job_id": "8_0"} if begun else JOB
    write_attempt(study.run(key), mine, {"state": "failed", "kind": "code_error", **said})
    view = QueueView({"8_0": Job(JobState.FAILED, "FAILED", "exit code 1:0")})
    observer = Observer(study, lambda ids: view)
    observer.refresh()
    (shown,), facts = observer.statuses(), read_facts(observer, key)
    assert facts is not None and shown.state == facts.state == "failed"
    assert facts.error == "\n".join(shown.told(9))
    assert (shown.told(1), facts.rank) == (["rank 1: KeyError: 'x'"], 1) if begun else ([], 0)


def test_a_trial_that_failed_has_its_error(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1])
    (key,) = keys.values()
    job = {"name": "local.w", "executor": "local", "job_id": "1"}
    write_attempt(study.run(key), job, {"state": "failed", "kind": "code_error", "error": "KeyError: 'x'"})
    facts = read_facts(Observer(study), key)
    assert facts is not None and facts.state == "pending" and not facts.error, "its search may try it again"
    assert of_search(facts, "failed", "").error == "KeyError: 'x'"
