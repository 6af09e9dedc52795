"""SLURM's reasons in words, and the command that helps: what stands still says so."""

import time

import pytest

from study.executors.base import Answer
from study.executors.jobs import Job, JobState, WaitKind
from study.executors.slurm.query import query_jobs
from study.executors.slurm.queue_reasons import explain, jobs
from study.status.overview import queued_lines, stands_still
from study.status.states import PointState, PointStatus

ORDINARY, LIMIT, STUCK = WaitKind


def point(key: str, state: PointState = PointState.QUEUED, reason: str = "", job_id: str | None = "7_0") -> PointStatus:
    return PointStatus(key=key, state=state, reason=reason, job_id=job_id, executor="slurm")


@pytest.mark.parametrize(
    ("reason", "kind", "word"),
    [
        ("Priority", ORDINARY, "others are before it"),
        ("Resources", ORDINARY, "the nodes are in use"),
        ("Dependency", ORDINARY, "waits for another job"),
        ("BeginTime", ORDINARY, "tries again"),
        ("BeginTime, StartTime=2099-12-01T07:30:00", LIMIT, "not to start before"),
        ("JobArrayTaskLimit", ORDINARY, "array_parallelism"),
        ("", ORDINARY, "new to the queue"),
        ("SomethingOfTomorrow", ORDINARY, "SLURM says SomethingOfTomorrow"),
        ("JobHeldUser", STUCK, "held by its owner"),
        ("JobHeldAdmin", STUCK, "held by an administrator"),
        ("launch failed requeued held", STUCK, "could not start it"),
        ("launch_failed_requeued_held", STUCK, "could not start it"),
        ("job requeued in held state", STUCK, "SLURM"),
        ("JobHoldMaxRequeue", STUCK, "too often"),
        ("REQUEUE_HOLD", STUCK, "holds it"),
        ("DependencyNeverSatisfied", STUCK, "never starts"),
        ("PartitionTimeLimit", STUCK, "requests more"),
        ("QOSMaxWallDurationPerJobLimit", STUCK, "requests more"),
        ("BadConstraints", STUCK, "requests more"),
        ("QOSMaxJobsPerUserLimit", LIMIT, "a limit of your account"),
        ("QOSGrpCpuLimit", LIMIT, "a limit of your account"),
        ("AssocGrpGRESMinutes", LIMIT, "a limit of your account"),
        ("AssocMaxJobsLimit", LIMIT, "a limit of your account"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", LIMIT, "down, drained or reserved"),
        ("ReqNodeNotAvail", LIMIT, "down, drained or reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", LIMIT, "reserved for maintenance"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", LIMIT, "down"),
        ("PartitionDown", LIMIT, "partition"),
        ("Reservation", LIMIT, "reservation"),
    ],
)
def test_reasons_in_words(reason: str, kind: str, word: str) -> None:
    means = explain(reason)
    assert means.kind == kind and word in means.words and reason in means.words
    assert bool(means.help) == (kind != ORDINARY)


def test_squeue_says_why_a_job_waits_also_where_accounting_knows_it() -> None:
    answers = {"squeue": Answer(0, "7|0|PENDING|JobHeldUser|s\n7|1|REQUEUE_HOLD|None|s\n7|2|RUNNING|None|s\n"),
               "sacct": Answer(0, "7_0|PENDING|0:0||s\n7_1|REQUEUE_HOLD|0:0||s\n7_2|RUNNING|0:0|n1|s\n")}  # fmt: skip
    found = query_jobs(["7"], lambda command: answers[command[0]]).jobs
    assert found["7_0"] == Job(JobState.QUEUED, "PENDING", "JobHeldUser", "s")
    assert found["7_1"].reason == "REQUEUE_HOLD"
    assert found["7_2"].reason == "", "not accounting's exit code of a job that runs"


def test_a_job_that_may_not_start_for_a_while_is_told_from_one_that_slurm_tries_again() -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 120))
    squeue = (
        "7|0|PENDING|BeginTime@2099-12-01T07:30:00|s\n"
        f"7|1|PENDING|BeginTime@{soon}|s\n7|2|PENDING|BeginTime@N/A|s\n7|3|PENDING|BeginTime|s\n"
        "7|4|PENDING|Resources@2099-12-01T07:30:00|s\n7|5|PENDING|JobHeldUser@N/A|s\n7|6|RUNNING|None@2020-01-01T00:00:00|s\n"
    )
    answers = {"squeue": Answer(0, squeue), "sacct": Answer(0, "")}
    jobs_of = query_jobs(["7"], lambda command: answers[command[0]]).jobs
    assert [jobs_of[f"7_{task}"].reason for task in range(7)] == [
        "BeginTime, StartTime=2099-12-01T07:30:00",
        *["BeginTime"] * 3,
        "Resources",
        "JobHeldUser",
        "",
    ]
    later, held = (point("ab", reason=jobs_of[name].reason, job_id=name) for name in ("7_0", "7_5"))
    said = queued_lines([later, held])
    words = " ".join(" ".join(said).split())
    assert "2099-12-01T07:30:00" in words and "scontrol update JobId=$job StartTime=now" in words
    assert stands_still([later, held]) and "stalled" in said[-1]
    assert not stands_still([point("ab", reason="BeginTime"), held])


def test_what_helps_where_a_dependency_is_never_satisfied_names_the_states_that_retry_takes() -> None:
    said = " ".join(" ".join(queued_lines([point("ab", reason="DependencyNeverSatisfied")])).split())
    assert "scancel 7" in said and "python -m study retry with --state cancelled" in said


def test_ids_as_scontrol_takes_them() -> None:
    assert jobs(["7_0", "7_1"]) == "7"
    assert jobs(["7_0", "7_1", "9"], others=["7_2"]) == "'7_[0-1]' 9"
    assert jobs(["7_0"], others=["8_1"]) == "7"
    assert jobs(["13_2"]) == "13_2", "tasks count from 0: there were others"
    assert jobs(["13_2", "13_4"]) == "'13_[2,4]'"
    assert jobs(["13_0"], others=["13_1"]) == "13_0"


def test_of_an_array_whose_other_tasks_have_ended_the_held_one_is_released() -> None:
    held, done = point("c", reason="JobHeldUser", job_id="13_0"), point("a", PointState.COMPLETED, job_id="13_1")
    assert queued_lines([held, done])[1].strip() == "scontrol release 13_0"


def test_a_study_that_stands_still_says_so_and_what_helps() -> None:
    held = [point("a", reason="JobHeldUser", job_id="7_0"), point("b", reason="JobHeldUser", job_id="7_1")]
    lines = queued_lines([*held, point("c", PointState.COMPLETED)])
    assert lines[0].startswith("2 queued: held by its owner (JobHeldUser)")
    assert lines[1].strip() == "scontrol release 7"
    assert "is stalled" in lines[-1] and stands_still(held)


def test_no_command_that_is_shown_ends_what_runs() -> None:
    never = point("a", reason="QOSMaxWallDurationPerJobLimit", job_id="7_0")
    lines = queued_lines(
        [never, point("b", PointState.RUNNING, job_id="7_1"), point("c", PointState.COMPLETED, job_id="7_2")]
    )
    assert any("scancel 7_0" in line for line in lines)


def test_a_study_that_moves_does_not() -> None:
    held, next_in_line = point("a", reason="JobHeldUser"), point("b", reason="Priority", job_id="7_1")
    assert not stands_still([held, next_in_line]) and not stands_still([held, point("b", PointState.RUNNING)])
    lines = queued_lines([held, next_in_line])
    assert lines[1].strip() == "scontrol release 7_0" and not any("is stalled" in line for line in lines)
    assert queued_lines([next_in_line]) == [] and queued_lines([]) == []
    assert not stands_still([point("c", PointState.COMPLETED)])
