"""Benchmarks that take key=value words: help, and one line for words that are wrong."""

from __future__ import annotations

import sys

import pytest

from benchmarks import analysis_intervals, analysis_large

COMMANDS = [analysis_intervals, analysis_large]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_words_there_are(
    command: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["command", "--help"])
    with pytest.raises(SystemExit) as ended:
        command.main()  # type: ignore[attr-defined]
    said = capsys.readouterr()
    name = command.__name__  # type: ignore[attr-defined]
    assert ended.value.code == 0 and not said.err
    assert said.out.startswith(f"usage: python -m {name} [key=value ...]")
    assert all(f"  {key.name}" in said.out for key in command.KEYS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "word", "why"),
    [
        (analysis_intervals, "studies", "write studies=VALUE"),
        (analysis_intervals, "study=3", "did you mean studies=?"),
        (analysis_intervals, "runs=20,x", "whole numbers from 1"),
        (analysis_intervals, "designs=grid,other", "'other' is none of isoflop"),
        (analysis_intervals, "cells=grid-20", "'grid-20' is no cell"),
        (analysis_large, "rows=0", "whole numbers from 1"),
        (analysis_large, "kinds=x", "'x' is none of runs, curves"),
        (analysis_large, "large", "there is no key 'large'"),
    ],
)
def test_wrong_words_are_named_in_one_line(
    command: object, word: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["command", word])
    with pytest.raises(SystemExit) as ended:
        command.main()  # type: ignore[attr-defined]
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert said.err.count("\n") == 1 and why in said.err and word.partition("=")[0] in said.err


def test_cells_are_those_that_were_asked_for() -> None:
    given = {"cells": [], "designs": ["grid", "random"], "runs": [20], "errors": ["normal", "shared"]}
    assert analysis_intervals.chosen(given) == [
        ("grid", 20, "normal"), ("grid", 20, "shared"), ("random", 20, "normal")
    ]  # fmt: skip
    assert analysis_intervals.chosen(given | {"cells": [("grid", 50, "heavy")]}) == [("grid", 50, "heavy")]
