"""What an export looks at before it exports: a folder that cannot be made, points and store, once each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from study.commands import export
from study.commands.export import _check_out
from study.records.point import Point, point_log
from study.status import observer
from study.storage.jsonl import Log
from study.storage.layout import StudyFolder
from study.tracking import model_registry
from tests.study.support.fake_store import FakeStore
from tests.study.support.recorded import unpack


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be made \\(Not a directory\\): name another folder"):
        _check_out(tmp_path / "file" / "out")
    with pytest.raises(ValueError, match="exists: name a folder that does not"):
        _check_out(tmp_path)
    _check_out(tmp_path / "new" / "out")
    assert not (tmp_path / "new" / "out").exists()


class Registered(FakeStore):
    """A store that has the model already."""

    def version(self, name: str, tags: dict[str, str]) -> str:
        return f"{len(self.runs)} runs"


def test_an_export_reads_the_points_once_and_opens_the_store_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = unpack(tmp_path)
    settings = place / "runs" / "recorded" / "study.yaml"
    settings.write_text(settings.read_text("utf-8").replace("enabled: false", "enabled: true"), "utf-8")
    read: list[Path] = []
    opened: list[str] = []

    def log(folder: StudyFolder) -> Log[Point]:
        read.append(folder.points)
        return point_log(folder)

    def connect(uri: str, *rest: object) -> Registered:
        opened.append(uri)
        return Registered()

    monkeypatch.setattr(observer, "point_log", log)
    monkeypatch.setattr(model_registry, "connect", connect)
    options = argparse.Namespace(
        study="recorded", runs=place / "runs", point="46f2", out=None, name=None, dtype="float32", json=True
    )
    assert export.run(options) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "11 runs", "ten points and the study were sent first"
    assert (read, len(opened)) == ([place / "runs" / "recorded" / "points.jsonl"], 1)
