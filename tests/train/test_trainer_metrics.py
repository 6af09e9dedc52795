"""metrics.jsonl: every step once, torn lines repaired."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train.metrics import MetricsFile


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
