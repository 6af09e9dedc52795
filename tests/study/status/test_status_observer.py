from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.records import ledger
from study.status import observer
from study.status.observer import Observer
from tests.study.support import made


def test_all_points_of_a_look_are_by_one_state_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = made.make_study(tmp_path / "s", 3)
    study.folder.ledger.unlink()
    sight, gather = Observer(study.folder), observer.gather

    def meanwhile(*words: Any, **more: Any) -> Any:
        ledger.append(study.folder, "cancelled", keys=study.keys)
        return gather(*words, **more)

    monkeypatch.setattr(observer, "gather", meanwhile)
    assert [status.state for status in sight.statuses()] == ["pending"] * 3
    assert [status.state for status in sight.statuses()] == ["cancelled"] * 3
