"""What SLURM's tools say, read word by word; and failures' last words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.schema import RetryConfig
from study.executors.base import Answer
from study.executors.job_spec import JobSpec
from study.executors.slurm.parse_limits import minutes, read_sacctmgr_assoc, read_sdiag, read_tres
from study.executors.slurm.start_estimate import estimate, in_words
from study.failures.kinds import Kind, by_words, headline
from study.failures.retry_policy import (
    TAKEN,
    TOLD,
    Action,
    Change,
    RecordedFailure,
    adapt,
    change,
    evidence,
    unit_verdict,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [("30", 30), ("90:59", 90), ("1:30:00", 90), ("00:30:59", 30), ("2-04", 3120), ("1-00:00:00", 1440),
     ("1-02:03:59", 1563), ("0-00:10", 10), ("UNLIMITED", None), ("", None), (" 15 ", 15)],
)  # fmt: skip
def test_durations(text: str, found: int | None) -> None:
    assert minutes(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("mem=2048K", 2), ("mem=16", 16), ("mem=16M", 16), ("mem=16G", 16_384), ("mem=2T", 2_097_152),
     ("mem=1P", 1_073_741_824), ("mem=3G(1)", 3072)],
)  # fmt: skip
def test_memory_in_mb(text: str, found: int) -> None:
    assert read_tres(text) == {"mem": found}


def test_what_is_not_understood_limits_nothing() -> None:
    assert read_tres("cpu=7(3), gres/gpu:a100=8,cpu=N(3),billing=x,node") == {"cpu": 7, "gres/gpu:a100": 8}


def test_associations_have_an_account_and_may_have_no_user() -> None:
    text = "lab||||normal|||cpu=8|1-00:00:00|mem=1G\n|ann||||||||\nlab|bob|gpu|root||5|9|||\nshort|line\n"
    first, second = read_sacctmgr_assoc(text)
    assert (first.account, first.user, first.default_qos, first.max_wall) == ("lab", "", "normal", 1440)
    assert (first.max_tres, first.group_tres) == ({"cpu": 8}, {"mem": 1024})
    assert (second.user, second.partition, second.max_wall) == ("bob", "gpu", None)


def test_jobs_that_wait_and_run_are_added() -> None:
    assert read_sdiag("x\nJobs pending:  12\nJobs running: 30\nJobs started: 9\n") == 42 and read_sdiag("") == 0


def test_a_start_is_asked_of_sbatch_with_the_whole_script() -> None:
    asked: list[tuple[str, ...]] = []

    def runner(command: Sequence[str]) -> Answer:
        asked.append(tuple(command))
        assert Path(command[2]).read_text(encoding="utf-8") == "#!/bin/sh\nå\n"
        return Answer(0, "", "sbatch: Job 9 to start at 2026-11-21T15:00:00 using 2 processors in partition main")

    said = estimate("#!/bin/sh\nå\n", runner)
    assert said == "SLURM would start the first job at 2026-11-21 15:00:00"
    assert asked[0][:2] == ("sbatch", "--test-only") and not Path(asked[0][2]).exists()


def test_the_last_line_says_why_it_would_not_start() -> None:
    said = "sbatch: error: first\nsbatch: error: allocation failure: Requested node configuration\n\n"
    assert in_words(Answer(1, "", said)) == "SLURM would not start it: Requested node configuration"


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("one\n\nValueError: bad\n  at x\n", "ValueError: bad"),
        ("KeyError: 1\nValueError: 2\nthe end", "ValueError: 2"),
        ("first\nlast  \n\n", "last"),
        ("[rank3]: RuntimeError: broken", "RuntimeError: broken"),
        ("", ""),
    ],
)
def test_the_line_that_says_most(stderr: str, line: str) -> None:
    assert headline(stderr) == line


def test_only_the_end_of_long_words_counts() -> None:
    trace = "Traceback (most recent call last)\nKeyError: 'a'\n"
    padding = "x" * 30_000 + "\n"
    assert by_words(trace + "done\n") == Kind.CODE_ERROR
    assert by_words(trace + padding) == Kind.UNKNOWN and by_words(padding + trace) == Kind.CODE_ERROR
    assert (
        by_words("ValueError: unknown key x", 1) == Kind.BAD_CONFIG
        and by_words("usage: error: x", 2) == Kind.BAD_CONFIG
    )


RULES = RetryConfig().rules()


def short_of_memory(gb: float | None, action: Action = Action.MORE, attempt: int = 1) -> RecordedFailure:
    return RecordedFailure("k", "b", attempt, Kind.HOST_MEMORY, action=action, memory_gb=gb)


def test_memory_grows_by_the_factor_from_what_it_last_was() -> None:
    third = replace(RULES, memory_factor=4 / 3)
    assert change([short_of_memory(8.0)], (), RULES) == Change((), 12.0)
    assert change([short_of_memory(8.0), short_of_memory(10.0, attempt=2)], ("b", "a"), third) == (
        Change(("a", "b"), 13.333)
    )
    assert (
        change([short_of_memory(None)], (), RULES) == change([short_of_memory(8.0, Action.STOP)], (), RULES) == Change()
    )


def test_a_change_asks_for_no_less_than_before() -> None:
    asks = JobSpec(exclude="n1", mem_gb=16.0)
    assert adapt(asks, Change()) is asks
    assert adapt(asks, Change(("n2", "n3"), 12.0)) == replace(asks, exclude="n1,n2,n3")
    assert adapt(asks, Change((), 24.0)) == replace(asks, mem_gb=24.0)
    assert adapt(JobSpec(), Change(("n2",), 0.5)) == JobSpec(exclude="n2", mem_gb=0.5)


def test_failures_of_a_day_count_against_a_node() -> None:
    def ends(*hours: float) -> list[RecordedFailure]:
        return [
            RecordedFailure("k", "b", n, Kind.NODE_FAILURE, ("n1",), time=-3600 * ago) for n, ago in enumerate(hours)
        ]

    said = {"n1": "2 attempts ended badly on it"}
    assert evidence(ends(1, 23.9), {}, RULES, 0.0) == said
    assert evidence(ends(1, 24.0), {}, RULES, 0.0) == {} and evidence(ends(1), {}, RULES, 0.0) == {}
    assert evidence(ends(1, 5.9), {}, replace(RULES, exclude_hours=6.0), 0.0) == said
    assert evidence(ends(1, 6.1), {}, replace(RULES, exclude_hours=6.0), 0.0) == {}
    assert evidence(ends(1), {"n1": "drained", "n2": "down"}, RULES, 0.0) == {"n1": "its state is drained"}


def test_a_worker_that_was_stopped_or_found_the_run_taken_is_no_failure() -> None:
    held, told = unit_verdict(Kind.HELD, [], RULES), unit_verdict(Kind.INTERRUPTED, [], RULES)
    assert (held.action, held.why) == (Action.AGAIN, TAKEN) and (told.action, told.why) == (Action.AGAIN, TOLD)
    assert unit_verdict(Kind.NODE_FAILURE, [], RULES).action == Action.AGAIN, "there is no other place"
