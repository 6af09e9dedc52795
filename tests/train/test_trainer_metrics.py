"""metrics.jsonl: every step once, torn lines repaired."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import recorded
from train.metrics import MetricsFile, Rollback, from_here


def written(path: Path) -> list[tuple[str, int, float]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(r["kind"], r["step"], r["metrics"]["loss"]) for r in rows]


def advance(path: Path, first: int, last: int) -> None:
    """Pass steps first to last, as a run does: a record each, a validation every third."""
    metrics = MetricsFile(path)
    for step in range(first, last + 1):
        metrics.write("train", step, step * 10, {"loss": step / 7})
        if step % 3 == 0:
            metrics.write("validation", step, step * 10, {"loss": step / 11})
    metrics.sync()
    metrics.close()


def test_a_record_has_the_agreed_form(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "m.jsonl")
    assert metrics.write("train", 3, 300, {"loss": 1.5, "lr": 0.1})
    assert not metrics.write("train", 3, 300, {"loss": 1.5, "lr": 0.1})
    assert metrics.write("validation", 3, 300, {"loss": 2.0})
    metrics.close()
    first, second = (json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines())
    assert set(first) == {"kind", "step", "tokens", "time", "metrics"}
    assert (first["kind"], first["step"], first["tokens"]) == ("train", 3, 300)
    assert first["metrics"] == {"loss": 1.5, "lr": 0.1}
    assert first["time"] == round(first["time"], 3) > 1.6e9
    assert second["kind"] == "validation"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kills=st.integers(1, 3))
def test_cut_anywhere_and_resumed_from_any_earlier_step_it_is_as_if_never_cut(
    tmp_path: Path, data: st.DataObject, kills: int
) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    whole.unlink(missing_ok=True)
    cut.unlink(missing_ok=True)
    advance(whole, 1, 10)
    reached = 0
    for _ in range(kills):
        checkpoint = data.draw(st.integers(0, reached))
        killed_at = data.draw(st.integers(checkpoint, 10))
        before = cut.read_bytes() if cut.exists() else b""
        advance(cut, checkpoint + 1, killed_at)
        content = cut.read_bytes()
        left = data.draw(st.integers(0, 200))
        if len(content) > len(before):  # the kill hit the writing of the last record
            last_line = content[:-1].rfind(b"\n") + 1
            cut.write_bytes(content[: min(last_line + left, len(content))])
            killed_at -= 1
        reached = max(reached, killed_at)
    advance(cut, data.draw(st.integers(0, reached)) + 1, 10)
    advance(cut, 1, 10)
    assert sorted(written(cut)) == sorted(written(whole))
    for kind in ("train", "validation"):
        steps = [step for k, step, _ in written(cut) if k == kind]
        assert steps == sorted(set(steps))


def go_back(metrics: MetricsFile, step: int, to: int, spikes: int | None = 1) -> None:
    assert metrics.write("rollback", step, step * 10, Rollback(0, step, to, to * 10, 999, spikes).metrics())


def test_each_rollback_is_recorded_and_all_of_the_path_that_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path)
    for step in range(1, 8):
        assert metrics.write("train", step, step * 10, {"loss": 99.0 if step > 4 else 3.0})
    assert metrics.write("validation", 6, 60, {"loss": 98.0})
    go_back(metrics, 7, 4)
    assert [metrics.write("train", step, step * 10, {"loss": 2.9}) for step in (5, 6)] == [True, True]
    go_back(metrics, 6, 4, spikes=2)  # a second one, after a step before that of the first
    assert [metrics.write("train", step, step * 10, {"loss": 2.8}) for step in (5, 6, 7, 8)] == [True] * 4
    assert metrics.write("validation", 6, 60, {"loss": 2.7})
    assert not metrics.write("train", 8, 80, {"loss": 2.8})
    metrics.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.get("path", 0) for row in rows] == [0] * 8 + [1] * 3 + [2] * 6
    assert "path" not in rows[0], "a run that never went back writes what it always wrote"
    taken = recorded.read(path)
    assert [(row["step"], row["metrics"]["loss"]) for row in taken if row["kind"] == "train"] == [
        *((step, 3.0) for step in (1, 2, 3, 4)),
        *((step, 2.8) for step in (5, 6, 7, 8)),
    ]
    assert [row["metrics"]["loss"] for row in recorded.read(path, "validation")] == [2.7]
    assert [(row["path"], row["step"]) for row in recorded.read(path, "rollback")] == [(1, 7), (2, 6)]
    again = MetricsFile(path)  # opened again it stands where it was
    assert (again.path, [one.spikes for one in again.written.rollbacks]) == (2, [1, 2])
    assert again.written.rollbacks[1] == Rollback(2, 6, 4, 40, 999, 2)
    assert not again.write("train", 8, 80, {"loss": 2.8})
    again.close()


def test_a_file_of_the_version_before_reads_as_it_did(tmp_path: Path) -> None:
    """Its rollbacks have no path: what came after them was written only for steps that were new."""
    path = tmp_path / "m.jsonl"
    old = {"kind": "train", "step": 1, "tokens": 10, "time": 1.0, "metrics": {"loss": 1.0}}
    rollback = {"kind": "rollback", "step": 3, "tokens": 30, "time": 3.0, "metrics": {"to_step": 1.0}}
    rows = [old, {**old, "step": 3}, rollback, {**old, "step": 4}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recorded.read(path) == rows
    metrics = MetricsFile(path)
    assert (metrics.path, metrics.written.rollbacks) == (0, [])
    assert not metrics.write("train", 4, 40, {"loss": 1.0})
    go_back(metrics, 4, 1)
    metrics.close()
    assert [row["step"] for row in recorded.read(path, "train")] == [1]


@pytest.mark.parametrize(
    "changed",
    [{"step": "x"}, {"path": "x"}, {"path": 1, "kind": "rollback", "metrics": {"to_step": math.inf}}, {"path": [1]}],
)
def test_lines_whose_numbers_are_none_are_no_records(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "m.jsonl"
    rows = [{"kind": "train", "step": step, "tokens": step, "time": 1.0, "metrics": {"loss": 1.0}} for step in (1, 2)]
    back = {"kind": "rollback", "step": 2, "path": 2, "metrics": {"to_step": 1}}
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {**rows[1], **changed}, back)))
    assert recorded.read(path) == [rows[0], back]
    assert recorded.read(path, "train") == rows[:1]


@pytest.mark.parametrize(
    ("went_to", "step", "followed"),
    [
        ([], 10, []),
        ([10], 10, [1]),
        ([10, 10], 10, [1, 2]),
        ([10, 15], 15, [2]),  # the checkpoint of step 15 knows the first
        ([10, 15], 10, [1]),  # that of step 15 is lost: what the second began is, too
        ([10, 15, 10], 10, [1, 3]),
        ([10], 5, []),
    ],
)
def test_which_rollbacks_a_resumed_run_goes_on_from(went_to: list[int], step: int, followed: list[int]) -> None:
    rollbacks = [Rollback(number, 20, to, 0, 0, None) for number, to in enumerate(went_to, 1)]
    assert [one.path for one in from_here(rollbacks, step)] == followed


def test_what_finds_no_room_is_kept_and_written_in_order_once_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path)
    metrics.write("train", 1, 10, {"loss": 1.5})
    before = path.read_bytes()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, unlimited[1]))  # room for a part of the next line
    try:
        for step in (2, 3, 4):
            assert metrics.write("train", step, 10 * step, {"loss": 1.4})
        with pytest.raises(OSError, match=r"File too large.*m\.jsonl"):  # no checkpoint may be newer than its metrics
            metrics.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert path.read_bytes() == before, "whole lines only"
    assert capsys.readouterr().err.count("kept in memory") == 1
    metrics.write("train", 5, 50, {"loss": 1.3})
    metrics.sync()
    metrics.close()
    assert [row[1] for row in written(path)] == [1, 2, 3, 4, 5]


def test_what_a_file_holds_of_a_path_is_known_by_step_and_tokens(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    advance(path, 1, 7)
    held = MetricsFile(path).written
    assert held.reached(0, "train") == (7, 70)
    assert held.reached(0, "validation") == (6, 60)
    assert held.reached(0, "spike") == (-1, -1)
    back = MetricsFile(path)
    back.write("rollback", 7, 70, Rollback(0, 7, 3, 30, 1, None).metrics())
    back.close()
    assert MetricsFile(path).written.reached(1, "train") == (3, 30), "its own are to begin behind that"
