from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.executors.base import Answer
from study.executors.jobs import Job, JobState
from study.executors.slurm.executor import Slurm
from study.executors.slurm.query import compress, expand, find_by_name, query_jobs, read_sacct, read_squeue, run

SQUEUE = """7|0|RUNNING|None|s.aa
7|1|PENDING|Resources|s.aa
7|2|COMPLETING|None|s.aa
9|N/A|SUSPENDED|None|other
"""
SACCT = """7_0|RUNNING|0:0|n1|s.aa
7_1|PENDING|0:0|None assigned|s.aa
7_3|CANCELLED by 1000|0:15|n2|s.aa
7_4|OUT_OF_MEMORY|0:125|n2|s.aa
7_[5-7,9%4]|PENDING|0:0|None assigned|s.aa
8|TIMEOUT|0:0|n1|t.bb
"""
OFF = Answer(1, "", "Slurm accounting storage is disabled")
DOWN = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


class Scheduler:
    """Answers squeue and sacct with fixed text, and keeps what it was asked."""

    def __init__(self, squeue: Answer, sacct: Answer) -> None:
        self.answers = {"squeue": squeue, "sacct": sacct}
        self.asked: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> Answer:
        self.asked.append(command)
        return self.answers[command[0]]


def test_squeue_text() -> None:
    view = read_squeue(Answer(0, SQUEUE))
    assert {k: j.state for k, j in view.jobs.items()} == {
        "7_0": "running",
        "7_1": "queued",
        "7_2": "running",
        "9": "running",
    }
    assert view.jobs["7_1"] == Job(JobState.QUEUED, "PENDING", "Resources", "s.aa")
    assert view.complete


def test_sacct_text() -> None:
    view = read_sacct(Answer(0, SACCT))
    assert view.complete
    assert view.jobs["7_3"].state == "cancelled"
    assert view.jobs["7_4"] == Job(JobState.FAILED, "OUT_OF_MEMORY", "exit code 0:125", "s.aa")
    assert [k for k, j in view.jobs.items() if j.state == "queued"] == ["7_1", "7_5", "7_6", "7_7", "7_9"]
    assert view.jobs["8"].state == "time_limit"


@pytest.mark.parametrize(
    "line",
    [
        "7|0|RUNNING|None",
        "7|0|RUNNING|None|s|x",
        "|0|RUNNING|None|s",
        "seven|0|RUNNING|None|s",
        "7|0||None|s",
        "7|zero|RUNNING|None|s",
        "7|0-x|RUNNING|None|s",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "\x00\x00\x00",
    ],
)
def test_a_line_that_is_not_understood_is_left_out_and_makes_absence_mean_nothing(line: str) -> None:
    view = read_squeue(Answer(0, f"7|1|RUNNING|None|s\n{line}\n"))
    assert list(view.jobs) == ["7_1"]
    assert not view.complete
    assert "1 line(s) could not be read" in view.problems[0]


@given(st.integers(0, len(SACCT) - 1))
def test_text_cut_off_anywhere_never_invents_a_state(end: int) -> None:
    whole, cut = read_sacct(Answer(0, SACCT)), read_sacct(Answer(0, SACCT[:end]))
    assert set(cut.jobs.items()) <= set(whole.jobs.items())
    assert cut.complete == (SACCT[:end] == "" or SACCT[:end].endswith("\n"))


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for view in (read_squeue(Answer(0, text)), read_sacct(Answer(0, text))):
        assert not view.jobs or "|" in text


def test_an_unknown_word_of_slurm_is_unknown() -> None:
    assert read_squeue(Answer(0, "7|0|HIBERNATING|None|s\n")).jobs["7_0"].state == "unknown"


def test_squeue_outranks_sacct_which_fills_in_what_squeue_forgot() -> None:
    scheduler = Scheduler(Answer(0, "7|0|COMPLETED|None|s\n"), Answer(0, SACCT))
    view = query_jobs(["7", "8"], scheduler)
    assert view.jobs["7_0"].state == "completed"
    assert view.jobs["7_3"].state == "cancelled"
    assert view.jobs["7_1"].state == "unknown", "accounting says pending, the controller does not know it"
    assert len(scheduler.asked) == 2, "one squeue and one sacct"


def test_the_exit_code_of_a_job_that_ended_comes_from_accounting() -> None:
    view = query_jobs(
        ["7"], Scheduler(Answer(0, "7|0|FAILED|NonZeroExitCode|s\n"), Answer(0, "7_0|FAILED|76:0|n1|s\n"))
    )
    assert view.jobs["7_0"].reason == "exit code 76:0"


def test_a_silent_controller_leaves_accounting_as_it_is() -> None:
    view = query_jobs(["7"], Scheduler(DOWN, Answer(0, SACCT)))
    assert view.jobs["7_1"].state == "queued"
    assert not view.complete
    assert "Unable to contact" in view.problems[0]


def test_accounting_that_is_switched_off_is_no_problem() -> None:
    view = query_jobs(["7"], Scheduler(Answer(0, SQUEUE), OFF))
    assert view.complete
    assert view.jobs["7_0"].state == "running"


def test_a_job_that_squeue_has_forgotten_is_an_answer() -> None:
    gone = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
    assert query_jobs(["7"], Scheduler(gone, OFF)).complete


@pytest.mark.parametrize(
    ("squeue", "sacct", "expected"),
    [
        (Answer(0, "7|N/A|PENDING|None|s.aa\n"), OFF, ("found", "7")),
        (Answer(0, "7|0-9|PENDING|None|s.aa\n"), OFF, ("found", "7")),
        (Answer(0, ""), Answer(0, SACCT), ("found", "7")),
        (Answer(0, ""), Answer(0, ""), ("absent", None)),
        (Answer(0, ""), OFF, ("absent", None)),
        (DOWN, Answer(0, ""), ("unanswered", None)),
        (Answer(0, ""), Answer(None, "", "sacct: no answer in 30 s"), ("unanswered", None)),
        (Answer(0, "garb"), Answer(0, ""), ("unanswered", None)),
    ],
)
def test_find_by_name(squeue: Answer, sacct: Answer, expected: tuple[str, str | None]) -> None:
    found = find_by_name("s.aa", 0.0, Scheduler(squeue, sacct))
    assert (found.answer, found.job_id) == expected


@given(st.sets(st.integers(0, 300), min_size=1))
def test_compress_is_undone_by_expand(indices: set[int]) -> None:
    assert expand(f"7_[{compress(indices)}]") == [f"7_{i}" for i in sorted(indices)]


def test_a_command_that_is_missing_gives_no_answer() -> None:
    assert run(["no-such-command-of-slurm"]).code is None


def test_a_folder_of_path_that_may_not_be_read_hides_no_missing_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What exec says of such a folder, for root too, it says of a file that is no program."""
    (tmp_path / "sbatch").touch(0o600)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["sbatch", "x"]) == Answer(None, error="sbatch: command not found")


@pytest.mark.parametrize(
    ("scontrol", "squeue", "requeued"),
    [
        (0, None, True),
        (1, None, False),
        (-15, "7|0|COMPLETING|None|b\n", True),  # the requeue kills the job, and scontrol with it
        (-15, "7|0|PENDING|BeginTime|b\n", True),
        (-9, "7|0|RUNNING|None|b\n", False),
        (None, "7|0|COMPLETING|None|b\n", True),  # no answer in time
        (None, "7|0|RUNNING|None|b\n", False),
        (-15, "", False),
    ],
)
def test_whether_a_job_was_requeued(scontrol: int | None, squeue: str | None, requeued: bool) -> None:
    answers = {"scontrol": Answer(scontrol), "squeue": DOWN if squeue is None else Answer(0, squeue)}
    asked: list[Sequence[str]] = []

    def runner(command: Sequence[str]) -> Answer:
        asked.append(command)
        return answers[command[0]]

    assert Slurm(runner).requeue("7_0") is requeued
    assert asked[0] == ["scontrol", "requeue", "7_0"]
    assert len(asked) == (1 if squeue is None else 2)


SHOWN = (
    "JobId=1 ArrayJobId=1 ArrayTaskId=0 JobName=low.4c Requeue=1 Restarts=0 StartTime=2026-11-29T23:23:40 "
    "EndTime=2026-11-29T23:23:51 Deadline=N/A PreemptEligibleTime=2026-11-29T23:23:40 PreemptTime={} SuspendTime=None"
)


@pytest.mark.parametrize(
    ("answer", "preempts"),
    [
        (Answer(0, SHOWN.format("2026-11-29T23:23:41")), True),
        (Answer(0, SHOWN.format("2026-11-29T23:23:40")), True),
        (Answer(0, SHOWN.format("2026-11-29T22:59:59")), False),  # its run before this one
        (Answer(0, SHOWN.format("None")), False),
        (Answer(1, "", "slurm_load_jobs error: Invalid job id specified"), False),
        (Answer(None, SHOWN.format("2026-11-29T23:23:41"), "scontrol: no answer in 30 s"), False),
        (Answer(0, ""), False),
    ],
)
def test_whether_a_job_is_being_preempted(answer: Answer, preempts: bool) -> None:
    asked: list[Sequence[str]] = []

    def runner(command: Sequence[str]) -> Answer:
        asked.append(command)
        return answer

    assert Slurm(runner).preempts("1_0") is preempts
    assert asked == [["scontrol", "show", "job", "--oneliner", "1_0"]]
