"""How a failure is told in few lines: the line that says most first, whichever way its record is written."""

from __future__ import annotations

from study.failures.words import Words

TRACE = ("Traceback (most recent call last):", '  File "x.py", line 3, in step', "ZeroDivisionError: none left")


def test_the_line_that_says_most_leads_and_is_said_once() -> None:
    words = Words.of_lines(TRACE)
    assert words.told() == ["ZeroDivisionError: none left", *TRACE[:2]]
    assert words.told(2) == ["ZeroDivisionError: none left", TRACE[1]]
    assert words.told(1) == ["ZeroDivisionError: none left"]


def test_a_rank_is_named_once_and_its_line_is_not_said_again() -> None:
    of_rank = Words("rank 1: ZeroDivisionError: none left", (f"rank 1: {TRACE[0]}", TRACE[1], f"[rank1]: {TRACE[2]}"))
    assert of_rank.told() == ["rank 1: ZeroDivisionError: none left", f"rank 1: {TRACE[0]}", TRACE[1]]


def test_an_error_of_several_lines_stays_whole() -> None:
    many = (*TRACE[:2], "RuntimeError: keys do not fit:", "  missing: a", "  surplus: b")
    assert Words.of_lines(many).told() == ["RuntimeError: keys do not fit:", *TRACE[:2], *many[3:]]


def test_a_killed_rank_is_told_by_its_signal_and_what_it_last_said() -> None:
    killed = "rank 1: killed by signal 9 (SIGKILL)"
    words = Words.of_end({"state": "failed", "headline": killed, "error": f"{killed}\nUserWarning: a\nUserWarning: b"})
    assert words.told(2) == [killed, "UserWarning: b"]


def test_records_of_every_version_are_read() -> None:
    listed = Words.of_end({"state": "failed", "error": list(TRACE)})
    assert listed == Words.of_end({"state": "failed", "error": "\n".join(TRACE)}) == Words.of_lines(TRACE)
    assert Words.of_end(None) == Words.of_end({"state": "failed", "error": None}) == Words()
    assert Words().told() == Words().told(3) == []


def test_without_a_line_that_says_most_the_last_ones_are_told() -> None:
    assert Words(lines=("a", "b", "c")).told(2) == ["b", "c"]
