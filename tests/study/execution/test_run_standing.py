from __future__ import annotations

import pytest

from study.executors.query import Job
from study.ledger import Batch
from study.standing import ENDED, STATES, Attempt, Evidence, judge

SLURM = Batch("b", "slurm", ("k",), 0.0, job_id="7")
LOCAL = Batch("b", "local", ("k",), 0.0, job_id="local")
UNSURE = Batch("b", "slurm", ("k",), 0.0)


def attempt(ended: str | None = None, name: str = "b") -> Attempt:
    return Attempt(1, {"name": name, "host": "h"}, None if ended is None else {"state": ended})


def job(state: str, word: str = "WORD", reason: str = "") -> Job:
    return Job(state, word, reason)


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
        (Evidence(batch=SLURM, job=job("failed", reason="exit code 76:0")), "interrupted"),
        (Evidence(batch=SLURM, job=job("completed"), attempt=attempt()), "failed"),
        (Evidence(batch=SLURM, job=job("time_limit"), attempt=attempt()), "time_limit"),
        (Evidence(batch=SLURM, job=job("time_limit"), attempt=attempt("interrupted")), "time_limit"),
        (Evidence(batch=SLURM, job=job("cancelled"), attempt=attempt("interrupted")), "cancelled"),
        (Evidence(batch=SLURM, job=job("cancelled")), "cancelled"),
        (Evidence(batch=SLURM, job=job("preempted"), attempt=attempt("preempted")), "interrupted"),
        (Evidence(batch=SLURM, job=job("preempted"), attempt=attempt()), "interrupted"),
        (Evidence(batch=SLURM, job=job("node_fail"), attempt=attempt()), "interrupted"),
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
    assert judge(seen).state == state


def test_an_ending_that_no_version_knows_is_unknown() -> None:
    assert judge(Evidence(batch=LOCAL, attempt=attempt("evaporated"))).state == "unknown"


def test_states_are_known_words() -> None:
    assert set(STATES) >= ENDED
