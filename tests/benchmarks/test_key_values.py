"""Benchmarks that take key=value words: help, and one line for words that are wrong."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks import analysis_intervals, analysis_large, analysis_nested

COMMANDS = [analysis_intervals, analysis_large, analysis_nested]


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
        (analysis_nested, "cells=8x5-0-normal", "'8x5-0-normal' is no cell"),
        (analysis_nested, "cells=8x1x2-0-normal", "each count at least 2"),
        (analysis_nested, "cells=8x5x12-0-light", "'8x5x12-0-light' is no cell"),
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


def test_checkpoints_of_a_cell_have_the_errors_that_it_says() -> None:
    """Residuals are constant over a size but for what its runs add, and over a run but for a twentieth of a percent."""
    (cell,) = analysis_nested.cells_of(analysis_nested.KEYS[-1], "40x3x30-2-normal")
    assert (cell.sizes, cell.runs, cell.checkpoints, cell.shared) == (40, 3, 30, 0.02)
    table = pd.DataFrame(analysis_nested.study(cell, 1))
    table["error"] = np.log(table["loss"] / analysis_nested.loss(table["params"], table["tokens"]))
    runs = table.groupby("run", sort=False)
    assert len(runs) == 120 and (runs.size() == 30).all()
    assert runs["error"].std().mean() == pytest.approx(analysis_nested.CHECKPOINT, rel=0.05)
    means = runs[["params", "error"]].mean().groupby("params")["error"]
    assert means.std().pow(2).mean() ** 0.5 == pytest.approx(analysis_nested.RUN, rel=0.2)
    assert means.mean().std() == pytest.approx(0.02, rel=0.25)
