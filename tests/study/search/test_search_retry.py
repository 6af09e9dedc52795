"""Bad ends of a search's units follow the study's own retry policy; a worker that is gone does not count as running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from study.config.schema import RetryConfig
from study.executors.job_spec import JobSpec
from study.executors.jobs import QueueView
from study.failures.kinds import Kind
from study.failures.retry_policy import RecordedFailure, RetryRules, unit_verdict
from study.reconcile import units
from study.search import retry, view
from study.search.state import Search, ended, started
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from study.workers import waiting
from tests.study.support.searches import make_search, run_worker, search_settings

ONE = {"trials": 1, "scheduler": "random"}


def policy(**said: Any) -> RetryRules:
    return RetryConfig(**said).rules()


def ends(*kinds: str, saved: int = 0) -> list[RecordedFailure]:
    return [RecordedFailure("k", "", number, Kind(kind), saved=saved) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("kind", "before", "rules", "how"),
    [
        ("killed", [], {}, "lost"),
        ("killed", ["killed", "killed"], {}, "failed"),  # retry.killed is `again 2`
        ("killed", [], {"killed": "stop"}, "failed"),
        ("code_error", [], {}, "failed"),
        ("code_error", [], {"code_error": "again 1"}, "lost"),
        ("code_error", ["code_error"], {"code_error": "again 1"}, "failed"),
        ("node_failure", ["node_failure"] * 4, {}, "lost"),  # `elsewhere` means again here
        ("node_failure", ["node_failure"] * 5, {}, "failed"),
        ("hang", ["hang", "killed", "node_failure", "hang"], {"failures": 4}, "failed"),
        ("preempted", ["preempted"] * 40, {}, "lost"),
        ("preempted", [], {"preempted": "stop"}, "failed"),
        ("interrupted", ["interrupted"] * 50, {}, "lost"),  # a worker was told to stop: not the trial's end
        ("held", ["held"] * 50, {}, "lost"),  # whoever has the run advances it
        ("gpu_memory", [], {}, "lost"),
        ("gpu_memory", ["gpu_memory"], {}, "failed"),
        ("host_memory", [], {}, "lost"),
    ],
)
def test_the_policy_is_the_studys(kind: str, before: list[str], rules: dict[str, Any], how: str) -> None:
    assert unit_verdict(Kind(kind), ends(*before), policy(**rules)).gives_up == (how == "failed")


def test_failures_count_while_the_run_gets_no_further() -> None:
    rules, row = RetryConfig().rules(), ends("killed", "killed", saved=100)
    assert unit_verdict(Kind.KILLED, row, rules, saved=100).gives_up
    assert not unit_verdict(Kind.KILLED, row, rules, saved=200).gives_up


def test_a_full_disk_stops_the_search_and_not_one_trial_after_the_other() -> None:
    then = unit_verdict(Kind.DISK_FULL, [], RetryConfig().rules())
    assert (then.gives_up, then.stops_all) == (False, True)
    assert not unit_verdict(Kind.DISK_FULL, [], policy(disk_full="again 3")).stops_all


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("NODE_FAIL", "node_failure"), ("PREEMPTED", "preempted"), ("TIMEOUT", "time_limit"),
        ("OUT_OF_MEMORY", "host_memory"), ("CANCELLED by 0", "cancelled"), ("FAILED", "node_failure"),
        ("COMPLETED", "node_failure"),
    ],
)  # fmt: skip
def test_a_jobs_end_is_of_the_kind_that_slurm_says(word: str, kind: str) -> None:
    assert retry.by_job(word) == kind
    assert units._kind("u", None, QueueView()) == "node_failure"


@pytest.mark.parametrize(("rule", "losses"), [("elsewhere 5", 5), ("elsewhere 1", 1), ("stop", 0)])
def test_workers_that_fall_silent_cost_a_trial_what_the_policy_says(tmp_path: Path, rule: str, losses: int) -> None:
    study = make_search(tmp_path / "s", lease=600.0, **ONE)
    study.study.write_text(f"retry: {{node_failure: {rule}}}\n")
    queue = TrialQueue.of(study)
    for loss in range(losses + 1):
        claim = queue.claim(f"w{loss}")
        assert claim is not None and claim.unit.trial == 0
        for lease in study.leases.iterdir():
            os.utime(lease, (0, 0))
    assert queue.claim("last") is None
    assert queue.search.trials[0].failed and queue.search.lost_units == losses
    assert "node_failure" in str(queue.log.records[-1]["why"])
    again = TrialQueue.of(study).search
    assert again.trials == queue.search.trials  # the counts are in the log


def test_ends_of_the_version_before_count_as_what_they_were() -> None:
    search = Search(search_settings(**ONE))
    for number in range(2):
        unit = search.decide()
        assert unit is not None
        search.apply(started(unit, "key", "w", 1.0, 0.0))
        old = ended(search.claims[2 * number], "lost", "hang" if number else "its worker w was silent for 9 s", 1.0)
        search.apply({**old, "silent": True})
    assert [end.kind for end in search.trials[0].ends] == ["node_failure", "hang"]


def test_a_crash_is_tried_again_where_the_policy_says_so(tmp_path: Path) -> None:
    space = {"optim.lr": {"kind": "choice", "values": [0.0001], "ordered": False}}  # the stand-in crashes at once
    study = make_search(tmp_path / "s", space=space, **ONE)
    study.study.write_text("cluster: {executor: local}\ntracking: {enabled: false}\nretry: {code_error: again 2}\n")
    run_worker(study)
    records = [r for r in TrialQueue.of(study).log.records if r["event"] == "ended"]
    assert [(r["how"], r["kind"]) for r in records] == [("lost", "code_error")] * 2 + [("failed", "code_error")]
    assert "that is the cap (retry.code_error)" in records[-1]["why"]


def test_a_unit_that_is_a_job_asks_for_more_memory_each_time_that_its_trial_was_short_of_it() -> None:
    rules, shape = policy(host_memory="more 3", memory_factor=2.0), JobSpec(mem_gb=8.0)
    assert [units.with_more_memory(shape, rules, times).mem_gb for times in range(3)] == [8.0, 16.0, 32.0]
    assert units.with_more_memory(shape, policy(host_memory="again 3"), 2) == shape
    search = Search(search_settings(**ONE))
    unit = search.decide()
    assert unit is not None
    search.apply(started(unit, "key", "w", 1.0, 0.0))
    search.apply({**ended(search.claims[0], "lost", "", 1.0), "kind": "host_memory"})
    assert search.trials[0].short_of_memory == 1


def dead_worker(folder: Path) -> StudyFolder:
    study = make_search(folder, lease=600.0)
    queue = TrialQueue.of(study)
    assert queue.claim("dead") and queue.claim("alive")
    os.utime(study.leases / "0", (0, 0))
    return study


def test_a_worker_that_is_gone_does_not_count_as_running_once_its_lease_has_run_out(tmp_path: Path) -> None:
    study = dead_worker(tmp_path / "s")
    before = study.events.read_bytes()
    search = TrialQueue.of(study).note_silent().search
    assert [view.verdict(search, trial) for trial in search.trials.values()] == ["silent", "running"]
    assert "1 running, 1 silent" in view.line(search)
    assert "1 worker silent for longer than a lease: the next worker takes the unit over" in view.text(search, study)
    os.utime(study.leases / "1", (0, 0))
    search = TrialQueue.of(study).note_silent().search
    assert "no worker is advancing a trial: run the study's command again" in waiting.idle(search, study)[0]
    assert study.events.read_bytes() == before  # who looks decides nothing


def test_an_end_that_does_not_say_what_was_saved_had_saved_nothing() -> None:
    found = retry.end_of({"claim": "4", "kind": "hang", "time": 2}, "k")
    assert found is not None
    assert (found.key, found.attempt, found.kind, found.time, found.saved) == ("k", 4, "hang", 2.0, 0)
    assert retry.end_of({"claim": 4, "kind": "interrupted", "time": 2}, "k") is None
