"""Watching a study of somebody else, which can only be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from study.records.settings import load_submission
from study.storage.files import write_json
from study.watch.follow import follow
from tests.study.support.studies import make_study


def test_watching_changes_nothing_where_the_study_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, keys = make_study(tmp_path / "theirs", [1])
    tracked = folder.study.read_text(encoding="utf-8").replace("enabled: false", f"uri: sqlite:///{tmp_path}/m.db")
    folder.study.write_text(tracked, encoding="utf-8")
    folder.run(keys[1]).path.mkdir()
    write_json(folder.run(keys[1]).outcome, {"state": "completed"})
    before = {path.name for path in folder.path.iterdir()}
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert follow(folder, load_submission(folder).cluster, control=False) == 0
    cache = {"settled.json"}  # which a command does without where it cannot write it
    assert {path.name for path in folder.path.iterdir()} <= before | cache
    assert "theirs: 1 completed" in capsys.readouterr().out
    assert not (tmp_path / "m.db").exists()
