"""Once a run has found its disk full, no other is started until somebody has made room and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from study import feed, ledger
from study.ledger import end_fields
from study.policy import End
from study.settling import Outside
from tests.study.execution.studies import FULL, make_study, run_to_end, states


def test_no_point_is_started_after_one_that_found_its_disk_full(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [FULL, 1, 2, 3])
    text = study.study.read_text().replace("slots: 2", "slots: 1")
    study.study.write_text(text)
    code, said = run_to_end(study)
    found = states(study)
    assert code == 1 and found == {keys[FULL]: "failed"} | {keys[seed]: "pending" for seed in (1, 2, 3)}
    assert "no new points are started: the disk was full; make room, then python -m study retry" in said


def test_nothing_waiting_is_submitted_before_a_point_that_found_its_disk_full_is_retried(tmp_path: Path) -> None:
    study, keys = make_study(tmp_path / "s", [1, 2])
    first, second = keys.values()
    ledger.append(study, "intent", name="s.a", executor="slurm", keys=[first], resources={}, code=None)
    ledger.append(study, "submitted", name="s.a", job_id="7")
    end = End(first, "s.a", 1, "disk_full", (), 1.0, "stop", "no space left", None, 0)
    ledger.append(study, "ended", **end_fields(end))
    ledger.append(study, "waiting", keys=[second], resources={}, code=None, parallel=None)
    asked: list[str] = []

    def runner(command: object) -> None:
        raise AssertionError(f"SLURM was asked: {command}")

    assert feed.feed(study, Outside(runner=runner, clock=lambda: 5.0, say=asked.append), {}) == 0  # type: ignore[arg-type]
    assert f"the disk was full when {first} ended: make room, then python -m study retry" in asked[0]
    ledger.append(study, "retry", keys=[first])
    with pytest.raises(AssertionError, match="SLURM was asked"):
        feed.feed(study, Outside(runner=runner, clock=lambda: 6.0), {})  # type: ignore[arg-type]
