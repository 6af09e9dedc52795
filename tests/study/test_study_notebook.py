"""A study from a notebook: the words of the command, its errors, and points as a frame."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import study
from study import notebook
from tests.study.support.made import complete, end_attempt, make_study, start_run

PRINTED = ("study.sweep: seed is given twice", "one", "two", "study.sweep: seed=x is not allowed")
CONFIG = "study:\n  name: widths\npaths:\n  runs: {runs}\n"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that are run; none is."""
    seen: list[list[str]] = []

    def run(given: Sequence[str], show: Callable[[str], object] | None) -> str:
        seen.append(list(given))
        if "--cfg" in given:
            return CONFIG.format(runs=tmp_path / "runs")
        if show is not None:
            show("2 new, 0 already")
        return "2 new, 0 already\n"

    monkeypatch.setattr(notebook, "_run", run)
    return seen


def test_names_complete_and_examples_run() -> None:
    assert {"submit", "points", "Submitted"} <= set(dir(study))
    assert getattr(study, "submit") is notebook.submit  # noqa: B009 - mypy does not know it
    with pytest.raises(AttributeError, match="no attribute 'submitt'"):
        getattr(study, "submitt")  # noqa: B009
    found = doctest.testmod(notebook)
    assert (found.attempted > 0, found.failed) == (True, 0)


def test_a_sweep_is_the_command_with_its_lists(commands: list[list[str]], tmp_path: Path) -> None:
    shown: list[str] = []
    made = notebook.submit("study=smoke", "optim.lr=0.1", sweep={"model.width": [16, 32]}, show=shown.append)
    assert commands == [
        ["--cfg", "job", "study=smoke", "optim.lr=0.1"],
        ["study=smoke", "optim.lr=0.1", "model.width=16,32", "-m"],
    ]
    assert (made.study, made.folder, shown) == ("widths", tmp_path / "runs" / "widths", ["2 new, 0 already"])
    assert repr(made) == f"Submitted('widths', folder='{tmp_path / 'runs' / 'widths'}')"
    notebook.submit("study=smoke", dry_run=True, show=None)
    assert commands[-1] == ["study=smoke", "dry_run=true"]


def test_values_of_a_sweep_are_typed_as_on_the_command_line() -> None:
    values: dict[str, Sequence[object]] = {
        "model.qk_norm": [True, False],
        "model.kv_heads": [None, 2],
        "seed": range(2),
    }
    made = ["model.qk_norm=true,false", "model.kv_heads=null,2", "seed=0,1", "-m"]
    assert notebook.words(sweep=values) == made
    wrong: tuple[Any, ...] = ([], "64", 64)
    for value in wrong:
        sweep: Any = {"model.width": value}
        with pytest.raises(ValueError, match=r"sweep: model.width=.* is no list of values"):
            notebook.words(sweep=sweep)
    override: Any = 5
    with pytest.raises(ValueError, match="5 is no override: give texts"):
        notebook.words(override)


def test_what_the_command_says_is_wrong_is_raised() -> None:
    with pytest.raises(ValueError, match=r"^unknown option --confg-name: did you mean --config-name\?$"):
        notebook.submit("study=smoke", "--confg-name=x", show=None)


@pytest.mark.parametrize(("code", "shown"), [(0, [*PRINTED]), (2, [*PRINTED[:3]])])
def test_what_is_raised_is_not_printed_as_well(
    code: int, shown: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = tmp_path / "python"
    command.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in PRINTED), f"exit {code}"]))
    command.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(command))
    seen: list[str] = []
    with pytest.raises(ValueError, match=r"^seed=x is not allowed$") if code else nullcontext():
        notebook._run([], seen.append)
    assert seen == shown


def test_points_are_a_frame_by_key(tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "three", 3)
    start_run(made.run(0))
    complete(made.run(0))
    end_attempt(made.run(0), "completed")
    found = notebook.points("three", runs=tmp_path / "runs")
    assert isinstance(found, pd.DataFrame) and len(found) == 3
    assert found.index.name == "key" and list(found.columns[:2]) == ["state", "why"]
    assert (found["state"] == "completed").sum() == 1
    pd.testing.assert_frame_equal(notebook.Submitted("three", tmp_path / "runs" / "three", "").points(), found)
    with pytest.raises(ValueError, match="no study 'four'"):
        notebook.points("four", runs=tmp_path / "runs")


def test_overrides_are_columns_with_numbers_for_numbers() -> None:
    records: list[dict[str, Any]] = [
        {"key": "a", "state": "running", "why": "", "overrides": ("model.width=16", "optim.lr=1e-3", "schedule=wsd"),
         "loss": None},
        {"key": "b", "state": "completed", "why": "", "overrides": ("model.width=32",), "loss": 2.5},
    ]  # fmt: skip
    found = notebook.frame(records)
    assert list(found.columns) == ["state", "why", "model.width", "optim.lr", "schedule", "loss"]
    assert found.loc["a", "model.width"] == 16 and found.loc["a", "optim.lr"] == 0.001
    assert found.loc["a", "schedule"] == "wsd" and found.loc["b", "loss"] == 2.5
    trials = notebook.frame([{"key": "t", "verdict": "stopped", "number": 3, "config": {"optim.lr": 0.1}, "loss": 3.0}],
                            ("verdict", "number", "bracket"))  # fmt: skip
    assert list(trials.columns) == ["verdict", "number", "optim.lr", "loss"]
