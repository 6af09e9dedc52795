"""metrics.jsonl: every step once, torn lines repaired."""

from __future__ import annotations

import json
import math
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.inputs import recorded
from train.metrics.file import MetricsFile, Rollback, Written, repair


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


def record(step: int, **changed: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "tokens": 10 * step, "time": 1.0, "metrics": {"loss": 1.0}, **changed}


def test_what_a_rollback_says_as_metrics() -> None:
    back = Rollback(3, 7, 4, 40, 999, 2)
    assert back.metrics() == {"to_step": 4.0, "to_tokens": 40.0, "sequences": 999.0, "spikes": 2.0}
    assert Rollback(3, 7, 4, 40, 999, None).metrics() == {"to_step": 4.0, "to_tokens": 40.0, "sequences": 999.0}
    assert all(type(value) is float for value in back.metrics().values())


def test_records_are_taken_in_by_path_and_kind() -> None:
    held = Written()
    assert held.newest == 0
    assert held.reached(0, "train") == (-1, -1)
    for step in (0, 5, 3):
        held.take_in(record(step))
    assert held.reached(0, "train") == (5, 50), "the last, whatever came after it"
    held.take_in(record(0, kind="validation", tokens=None))
    assert held.reached(0, "validation") == (0, 0)
    held.take_in(record(8, kind="other", tokens=8.5))
    assert held.reached(0, "other") == (8, 0), "no count that is a whole number"
    held.take_in(record(-7, kind="odd", tokens=-70))
    assert held.reached(0, "odd") == (-1, 0)
    assert held.reached(1, "train") == (-1, -1), "of a path that nobody began"
    said = {"to_step": 3.0, "to_tokens": 30.0, "sequences": 12.0, "spikes": 1.0}
    held.take_in(record(5, kind="rollback", path=1, metrics=said))
    held.take_in(record(4, kind="rollback", path=2, metrics={"to_step": 2.0}))
    assert held.rollbacks == [Rollback(1, 5, 3, 30, 12, 1), Rollback(2, 4, 2, 0, 0, None)]
    assert held.reached(1, "train") == (3, 30)
    assert held.reached(2, "train") == (2, 0)
    assert held.newest == 2
    held.take_in(record(9, path=1))
    assert held.reached(1, "train") == (9, 90)
    assert len(held.rollbacks) == 2, "other kinds are none, whatever their path"
    held.take_in(record(9, kind="rollback", metrics={}))
    assert len(held.rollbacks) == 2, "nor are those of earlier versions, which begin no path"
    for broken in (
        {"step": 1},
        {"kind": "train"},
        {**record(1), "step": "x"},
        record(1, path=1, kind="rollback", metrics=[]),
    ):
        before = dict(held.last)
        with pytest.raises((KeyError, ValueError, AttributeError)):
            held.take_in(broken)
        assert (held.last, len(held.rollbacks)) == (before, 2)
    held.last[0, "before tokens"] = 4
    assert held.reached(0, "before tokens") == (4, 0)


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        (b"", 2),
        (b'{"kind": "train", "step": 3, "tokens": 30', 2),
        (b'{"kind": "train", "step": 3, "tokens": 30, "metrics": {}}', 2),  # whole, but for the end of its line
        (b"null\n", 2),
        (b"[3]\n", 2),
        (b"\n", 2),
        (b'{"kind": "train"}\n{"kind": "train", "step": 4}\n', 2),  # nothing after a line that is none
        (b"[" * 100_000 + b"\n", 2),
        (b'{"kind": "train", "step": 3, "tokens": 30, "metrics": {}}\n', 3),
    ],
)
def test_a_file_is_cut_behind_its_last_whole_record(tmp_path: Path, torn: bytes, kept: int) -> None:
    path = tmp_path / "m.jsonl"
    whole = "".join(json.dumps(record(step)) + "\n" for step in (1, 2)).encode()
    path.write_bytes(whole + torn)
    held = repair(path)
    assert held.reached(0, "train") == (kept, 10 * kept)
    assert path.read_bytes() == (whole if kept == 2 else whole + torn)


def test_a_file_that_is_whole_is_not_touched_and_one_that_is_not_there_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "m.jsonl", list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    assert repair(path) == Written()
    assert not path.exists()
    whole = json.dumps(record(1)) + "\n"
    path.write_text(whole)
    os.utime(path, ns=(10**18, 10**18))
    assert repair(path).reached(0, "train") == (1, 10)
    assert (path.stat().st_mtime_ns, synced) == (10**18, [])
    path.write_text(whole + "torn")
    repair(path)
    assert (path.read_text(), len(synced)) == (whole, 1), "what is cut off stays cut off"


def test_steps_from_zero_on_and_whole_files_of_one_path(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~_umask()
    assert metrics.write("train", 0, 0, {"loss": 1.0}) is True
    assert metrics.write("train", 0, 0, {"loss": 1.0}) is False
    assert metrics.write("train", -1, 0, {"loss": 1.0}) is False
    assert metrics.write("other", -1, 0, {"loss": 1.0}) is False, "steps are numbered from 0"
    with pytest.raises(ValueError, match="not JSON compliant"):
        metrics.write("train", 1, 10, {"loss": math.nan})
    metrics.sync()
    (row,) = path.read_text().splitlines()
    assert json.loads(row)["step"] == 0
    assert row == json.dumps(json.loads(row)), "in one line"
    metrics.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(metrics._fd)


def test_times_are_to_the_millisecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.metrics.file.time.time", lambda: 1700000000.123456)
    metrics = MetricsFile(tmp_path / "m.jsonl")
    metrics.write("train", 1, 10, {})
    metrics.close()
    assert json.loads((tmp_path / "m.jsonl").read_text())["time"] == 1700000000.123


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_checkpoint_waits_until_the_records_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricsFile(tmp_path / "m.jsonl")
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    metrics.write("train", 1, 10, {"loss": 1.0})
    assert synced == []
    metrics.sync()
    assert synced == [metrics._fd]
    metrics.close()


class Narrow:
    """Stands for the operating system: takes so many bytes at a time, or none while the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: list[int] = []
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        room = self.room.pop(0) if self.room else len(data)
        if room == 0:
            raise OSError(28, "No space left on device")
        return self._write(fd, data[:room])


def test_a_record_that_goes_out_in_pieces_is_whole_and_one_that_does_not_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.jsonl"
    metrics, disk = MetricsFile(path), Narrow(monkeypatch)
    disk.room = [5, 1, 7]
    metrics.write("train", 1, 10, {"loss": 1.0})
    whole = path.read_bytes()
    assert [step for _, step, _ in written(path)] == [1]
    for room in ([0], [9, 0], [3, 4, 0]):
        disk.room = list(room)
        metrics.write("train", 1 + len(room), 10, {"loss": 1.0})  # warned of once
        assert path.read_bytes() == whole
        disk.room = [4, 0]
        with pytest.raises(OSError, match=r"No space left on device: .*m\.jsonl") as caught:
            metrics.sync()
        assert (caught.value.errno, path.read_bytes()) == (28, whole)
        disk.room = []
        if room == [9, 0]:
            metrics.sync()
            assert [step for _, step, _ in written(path)] == [1, 2, 3]
            whole = path.read_bytes()
    metrics.close()
    assert [step for _, step, _ in written(path)] == [1, 2, 3, 4], "closing writes what can be written"
    said = capsys.readouterr().err
    assert said.count("metrics are kept in memory until they can be written: ") == 2, "once each time the disk fills"
    closing = MetricsFile(path)
    disk.room = [0, 0]
    closing.write("train", 9, 90, {"loss": 1.0})
    closing.close()  # what cannot be written keeps nobody from ending
    assert [step for _, step, _ in written(path)] == [1, 2, 3, 4]


def test_paths_are_numbered_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    metrics = MetricsFile(path)
    assert (metrics.path, metrics.written.newest) == (0, 0)
    for number in (1, 2, 3):
        go_back(metrics, 5, 2)
        assert (metrics.path, metrics.written.newest) == (number, number)
    metrics.path = 1  # as of a checkpoint from before the others
    go_back(metrics, 5, 2)
    assert metrics.path == 4
    metrics.close()
    again = MetricsFile(path)
    assert again.path == 4
    again.close()
