"""One file of all outcomes, which changes only where one of them does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from study.records.outcomes import export
from study.storage.layout import StudyFolder
from study.storage.shapes import DamagedRecord


def put(folder: StudyFolder, key: str, text: str) -> None:
    run = folder.path / key
    run.mkdir(parents=True, exist_ok=True)
    (run / "outcome.json").write_text(text, encoding="utf-8")


def test_outcomes_are_one_line_each_in_order_of_their_keys(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    put(folder, "b", '{"state": "diverged", "a": 1}')
    put(folder, "a", '{"state": "completed"}')
    (folder.path / "c").mkdir()
    put(folder, "torn", '{"loss": ')
    with pytest.warns(DamagedRecord, match=r"torn/outcome\.json is not the outcome of a run: it is not JSON"):
        assert export(folder) == 2
    text = folder.outcomes.read_text(encoding="utf-8")
    assert text == '{"key": "a", "state": "completed"}\n{"a": 1, "key": "b", "state": "diverged"}\n'


def test_the_file_is_replaced_only_where_an_outcome_changed(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    put(folder, "a", '{"state": "completed"}')
    export(folder)
    first = folder.outcomes.stat()
    assert export(folder) == 1
    assert (folder.outcomes.stat().st_ino, folder.outcomes.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    put(folder, "a", '{"state": "completed", "tokens": 2}')
    assert export(folder) == 1
    assert json.loads(folder.outcomes.read_text(encoding="utf-8"))["tokens"] == 2


def test_a_study_of_no_outcomes_has_an_empty_file(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    assert export(folder) == 0
    assert folder.outcomes.read_text(encoding="utf-8") == ""
