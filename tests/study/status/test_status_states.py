from __future__ import annotations

import pytest

from study.executors.jobs import Job, JobState
from study.records.attempts import Attempt
from study.records.ledger import Batch
from study.status.states import ENDED, Evidence, PointState, derive_state

SLURM = Batch("b", "slurm", ("k",), 0.0, job_id="7")
LOCAL = Batch("b", "local", ("k",), 0.0, job_id="local")
UNSURE = Batch("b", "slurm", ("k",), 0.0)


def attempt(ended: str | None = None, name: str = "b") -> Attempt:
    return Attempt(1, {"name": name, "host": "h"}, None if ended is None else {"state": ended})


def said(kind: str) -> Attempt:
    return Attempt(1, {"name": "b", "host": "h"}, {"state": "failed", "kind": kind})


def job(state: str, word: str = "WORD", reason: str = "") -> Job:
    return Job(JobState(state), word, reason)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        # outcome files outrank everything
        (Evidence(batch=SLURM, outcome="completed", job=job("running")), "completed"),
        (Evidence(batch=SLURM, outcome="diverged", job=job("failed")), "diverged"),
        (Evidence(batch=UNSURE, outcome="completed"), "completed"),
        # without a batch
        (Evidence(), "pending"),
        (Evidence(cancelled=True), "cancelled"),
        (Evidence(attempt=attempt(), alive=True), "running"),
        (Evidence(attempt=attempt("failed")), "pending"),
        # local
        (Evidence(batch=LOCAL), "pending"),
        (Evidence(batch=LOCAL, cancelled=True), "cancelled"),
        (Evidence(batch=LOCAL, attempt=attempt(), alive=True), "running"),
        (Evidence(batch=LOCAL, attempt=attempt(), alive=False), "interrupted"),
        (Evidence(batch=LOCAL, attempt=attempt(), alive=None), "unknown"),
        (Evidence(batch=LOCAL, attempt=attempt(), alive=False, cancelled=True), "cancelled"),
        (Evidence(batch=LOCAL, attempt=attempt("failed"), alive=None), "failed"),
        (Evidence(batch=LOCAL, attempt=attempt("interrupted"), cancelled=True), "cancelled"),
        (Evidence(batch=LOCAL, attempt=attempt("interrupted"), queue_complete=False), "interrupted"),
        (Evidence(batch=LOCAL, attempt=attempt("failed", name="earlier")), "pending"),
        (Evidence(batch=LOCAL, attempt=attempt(name="earlier"), alive=True), "running"),
        # SLURM says
        (Evidence(batch=SLURM, job=job("queued")), "queued"),
        (Evidence(batch=SLURM, job=job("running"), attempt=attempt()), "running"),
        (Evidence(batch=SLURM, job=job("queued"), attempt=attempt("interrupted")), "queued"),
        (Evidence(batch=SLURM, job=job("running"), attempt=attempt("interrupted")), "running"),
        (Evidence(batch=SLURM, job=job("failed"), attempt=attempt("failed")), "failed"),
        (Evidence(batch=SLURM, job=job("failed")), "failed"),
        # cancelled while its job waited to start again: by a command, or by scancel
        (Evidence(batch=SLURM, job=job("cancelled"), attempt=attempt("time_limit"), retried=True), "cancelled"),
        (Evidence(batch=SLURM, attempt=attempt("time_limit"), retried=True, cancelled=True), "cancelled"),
        (Evidence(batch=SLURM, job=job("cancelled"), attempt=said("hang"), retried=True), "cancelled"),
        (Evidence(batch=SLURM, job=job("cancelled"), attempt=attempt("time_limit")), "time_limit"),
        # its job left the run to another attempt: that still has it, or nobody does
        (Evidence(batch=SLURM, job=job("failed"), owned=True), "running"),
        (Evidence(batch=SLURM, job=job("failed"), owned=False), "interrupted"),
        (Evidence(batch=SLURM, job=job("failed"), attempt=attempt(), owned=True), "running"),
        (Evidence(batch=SLURM, job=job("failed"), attempt=attempt("interrupted"), owned=True), "running"),
        (Evidence(batch=SLURM, job=job("failed"), attempt=attempt("failed"), owned=False), "failed"),
        (Evidence(batch=SLURM, job=job("queued"), owned=False), "queued"),
        (Evidence(batch=SLURM, job=job("failed"), owned=False, cancelled=True), "cancelled"),
        (Evidence(batch=SLURM, job=job("failed"), owned=False, outcome="completed"), "completed"),
        (Evidence(batch=SLURM, job=job("completed"), attempt=attempt()), "failed"),
        (Evidence(batch=SLURM, job=job("time_limit"), attempt=attempt()), "time_limit"),
        (Evidence(batch=SLURM, job=job("time_limit"), attempt=attempt("interrupted")), "time_limit"),
        (Evidence(batch=SLURM, job=job("cancelled"), attempt=attempt("interrupted")), "cancelled"),
        (Evidence(batch=SLURM, job=job("cancelled")), "cancelled"),
        (Evidence(batch=SLURM, job=job("preempted"), attempt=attempt("preempted")), "interrupted"),
        (Evidence(batch=SLURM, job=job("preempted"), attempt=attempt()), "interrupted"),
        (Evidence(batch=SLURM, job=job("node_failure"), attempt=attempt()), "interrupted"),
        # nobody says anything: absence is not evidence
        (Evidence(batch=SLURM), "unknown"),
        (Evidence(batch=SLURM, attempt=attempt()), "unknown"),
        (Evidence(batch=SLURM, job=job("unknown"), attempt=attempt()), "unknown"),
        (Evidence(batch=SLURM, attempt=attempt("interrupted"), problem="squeue", queue_complete=False), "unknown"),
        (Evidence(batch=SLURM, attempt=attempt("failed"), problem="squeue", queue_complete=False), "failed"),
        (Evidence(batch=SLURM, attempt=attempt("interrupted"), problem="sacct"), "interrupted"),
        (Evidence(batch=SLURM, attempt=attempt("failed")), "failed"),
        (Evidence(batch=SLURM, attempt=attempt("time_limit")), "time_limit"),
        (Evidence(batch=SLURM, cancelled=True), "cancelled"),
        (Evidence(batch=SLURM, cancelled=True, attempt=attempt()), "unknown"),
        (Evidence(batch=UNSURE), "unknown"),
    ],
)
def test_judge(seen: Evidence, state: str) -> None:
    assert derive_state(seen).state == state


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (Evidence(batch=SLURM, job=job("failed", "OUT_OF_MEMORY"), attempt=attempt()), "host_memory"),
        (Evidence(batch=SLURM, job=job("failed", "OUT_OF_MEMORY"), attempt=attempt("interrupted")), "host_memory"),
        (Evidence(batch=SLURM, job=job("node_failure", "NODE_FAIL"), attempt=attempt()), "node_failure"),
        (Evidence(batch=SLURM, job=job("node_failure", "NODE_FAIL"), attempt=attempt("interrupted")), "node_failure"),
        (Evidence(batch=SLURM, job=job("preempted", "PREEMPTED"), attempt=attempt("interrupted")), "preempted"),
        (Evidence(batch=SLURM, job=job("time_limit", "TIMEOUT"), attempt=attempt()), "time_limit"),
        (Evidence(batch=SLURM, job=job("completed", "COMPLETED"), attempt=attempt()), "no_outcome"),
        (Evidence(batch=SLURM, job=job("failed", "FAILED", "exit code 137:0"), attempt=attempt()), "killed"),
        (Evidence(batch=SLURM, job=job("failed", "FAILED", "exit code 1:0"), attempt=attempt()), "unknown"),
        # what an attempt says of itself, SLURM does not know better, but for the cause of a signal
        (Evidence(batch=SLURM, job=job("failed", "FAILED", "exit code 1:0"), attempt=said("code_error")), "code_error"),
        (Evidence(batch=SLURM, job=job("failed", "FAILED", "exit code 137:0"), attempt=said("hang")), "hang"),
        (Evidence(batch=SLURM, job=job("failed", "OUT_OF_MEMORY"), attempt=said("killed")), "host_memory"),
        (Evidence(batch=SLURM, attempt=said("node_failure")), "node_failure"),
        (Evidence(batch=LOCAL, attempt=attempt(), alive=False), "killed"),
        (Evidence(batch=SLURM, job=job("failed"), attempt=attempt("interrupted"), owned=False), "held"),
        (Evidence(batch=SLURM, job=job("failed"), attempt=said("code_error"), owned=False), "code_error"),
        # nothing follows from these
        (Evidence(batch=SLURM, job=job("cancelled", "CANCELLED by 0"), attempt=attempt("interrupted")), ""),
        (Evidence(batch=SLURM), ""),
        (Evidence(batch=SLURM, job=job("unknown"), attempt=attempt()), ""),
        (Evidence(batch=SLURM, job=job("running"), attempt=attempt("interrupted")), ""),
        (Evidence(batch=SLURM, job=job("failed"), attempt=attempt("interrupted"), owned=True), ""),
    ],
)
def test_the_kind_of_an_end(seen: Evidence, kind: str) -> None:
    assert derive_state(seen).kind == kind


def test_a_run_that_was_to_requeue_itself_is_unknown_while_squeue_is_silent() -> None:
    ended = attempt("time_limit")
    assert derive_state(Evidence(batch=SLURM, attempt=ended, retried=True, queue_complete=False)).state == "unknown"
    assert derive_state(Evidence(batch=SLURM, attempt=ended, retried=True)).state == "time_limit"


def test_an_ending_that_no_version_knows_is_unknown() -> None:
    assert derive_state(Evidence(batch=LOCAL, attempt=attempt("evaporated"))).state == "unknown"


def test_states_are_known_words() -> None:
    assert set(PointState) >= ENDED
