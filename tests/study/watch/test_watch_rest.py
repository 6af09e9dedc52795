"""Following a study: how long it rests between two looks, and what it reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from study.records import frozen_config, ledger
from study.records.settings import load_submission
from study.status.states import PointState, PointStatus
from study.storage.files import write_json
from study.storage.layout import StudyFolder
from study.watch.follow import TICK_SECONDS, AllEnd, StopSignal, _rest, follow
from tests.study.support.studies import make_study
from train.spec.config import RunConfig


def test_a_rest_ends_once_all_that_lived_have_an_outcome(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    live = [PointStatus(key, PointState.RUNNING) for key in ("a" * 12, "b" * 12)]
    first, last = (folder.run(status.key).outcome for status in live)
    first.parent.mkdir(parents=True)
    last.parent.mkdir()
    write_json(first, {"state": "completed"})
    begun = time.monotonic()
    _rest(3 * TICK_SECONDS, StopSignal(), AllEnd(folder, live))
    assert time.monotonic() - begun >= 3 * TICK_SECONDS, "one of them lives"
    threading.Timer(TICK_SECONDS, write_json, (last, {"state": "completed"})).start()
    begun = time.monotonic()
    _rest(60.0, StopSignal(), AllEnd(folder, live))
    assert time.monotonic() - begun < 30.0


@pytest.mark.parametrize(("slots", "most"), [("2", 0), ("null", 1)])
def test_slots_are_counted_by_one_config_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: str, most: int
) -> None:
    folder, keys = make_study(tmp_path / "s", [1, 2, 3])
    folder.study.write_text(folder.study.read_text().replace("slots: 2", f"slots: {slots}"))
    ledger.append(folder, "intent", name="s.a", executor="local", keys=list(keys.values()), resources={}, code=None)
    ledger.append(folder, "submitted", name="s.a", job_id="local")
    for key in keys.values():
        folder.run(key).path.mkdir()
        write_json(folder.run(key).outcome, {"state": "completed"})
    made, run_config = list[object](), frozen_config.run_config

    def noted(raw: Mapping[str, Any]) -> RunConfig:
        made.append(raw)
        return run_config(raw)

    monkeypatch.setattr(frozen_config, "run_config", noted)
    assert follow(folder, load_submission(folder).cluster) == 0
    assert len(made) == most
