"""Between two looks at a study: no longer than until nothing is left to watch."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from study.status.states import PointState, PointStatus
from study.storage.files import write_json
from study.storage.layout import StudyFolder
from study.watch.follow import TICK_SECONDS, AllEnd, StopSignal, _rest


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
