"""Rows judged and records read, one by one: what takes part in fits, which path a run took, its validations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.inputs import recorded
from analysis.inputs.columns import LABEL_SLACK, LOSS_UNIT, empty, finish, judge
from analysis.inputs.learning import checkpoints, validations

FULL: dict[str, Any] = {
    "key": "k", "params": 1e6, "tokens": 2e7, "flops": 1.2e14, "loss": 3.0, "state": "completed",
    "schedule_complete": True, "flops_budget": 1e14,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({}, "", ""),
        ({"state": "Done"}, "", ""),
        ({"state": "running"}, "running", "the run is running: it has no final loss"),
        ({"state": ""}, "unknown", "the run is unknown: it has no final loss"),
        ({"loss": None}, "missing", "loss is empty or NaN: not run, or diverged"),
        ({"loss": math.nan, "flops": ""}, "missing", "flops, loss are empty or NaN: not run, or diverged"),
        ({"loss": 0.0}, "not_positive", "loss must be positive and finite, found 0.0"),
        ({"loss": -1.0, "tokens": math.inf}, "not_positive",
         "tokens, loss must be positive and finite, found inf, -1.0"),
        ({"params": "many"}, "not_positive", "params must be positive and finite, found many"),
        ({"schedule_complete": False}, "mid_schedule",
         "the learning-rate schedule was not finished, which biases the loss upwards"),
        ({"schedule_complete": "0.0"}, "mid_schedule",
         "the learning-rate schedule was not finished, which biases the loss upwards"),
        ({"schedule_complete": False, "schedule": "wsd"}, "mid_schedule",
         "the learning-rate schedule was not finished, which biases the loss upwards"),
        ({"schedule_complete": False, "schedule": "constant"}, "mid_schedule",
         "the learning rate was constant to the end, so the loss has not come down"),
        ({"schedule_complete": True, "schedule": "constant"}, "", ""),
        ({"schedule_complete": math.nan}, "", ""),
    ],
)  # fmt: skip
def test_why_a_row_takes_no_part(changes: dict[str, Any], code: str, reason: str) -> None:
    assert judge({**FULL, **changes}) == (code, reason)


def test_a_checkpoint_is_named_before_the_reason() -> None:
    said = judge({**FULL, "schedule_complete": False}, checkpoint="step 5 of run a")
    reason = "the learning-rate schedule was not finished, which biases the loss upwards"
    assert said == ("mid_schedule", f"step 5 of run a: {reason}")
    trunk = judge({**FULL, "schedule_complete": False, "schedule": "constant"}, checkpoint="step 5 of run a")
    assert trunk == said, "a checkpoint in the middle of a run says nothing of its end"
    assert [empty(cell) for cell in ("", math.nan, None, 0, "x")] == [True, True, False, False, False]


def test_every_row_of_a_table_is_judged_as_it_is_alone() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"state": "Done"}, {"state": "running"}, {"loss": None}, {"loss": -1.0}, {"tokens": math.inf},
        {"schedule_complete": False}, {"schedule_complete": "0.0"}, {"schedule_complete": None},
        {"schedule_complete": 0.0}, {"schedule_complete": False, "loss": 0.0},
    ]  # fmt: skip
    rows = [{**FULL, **one, "key": f"{i:02d}"} for i, one in enumerate(changes)]
    early = {6: "a checkpoint of run a before its last", 10: "a checkpoint of run b before its last"}
    found = finish(rows, 0, checkpoints=early).sort_values("key")
    alone = [judge(row, checkpoint=early.get(i, "")) for i, row in enumerate(rows)]
    assert list(zip(found["drop_code"], found["drop_reason"], strict=True)) == alone


def test_rows_are_sorted_judged_and_typed() -> None:
    rows = [
        {**FULL, "key": "c", "flops_budget": 2e14, "lr": "0.5"},
        {**FULL, "key": "b", "params": 2e6, "schedule_complete": None},
        {**FULL, "key": "a", "params": 2e6},
        {**FULL, "key": "d", "loss": 0.0},
        {**FULL, "key": "e", "flops_budget": None, "mine": "7"},
    ]
    frame = finish(rows, 4, unread={0: "lr=x is no number"}, copies={2: "as row 2", 3: "as row 4"})
    assert list(frame["key"]) == ["d", "a", "b", "c", "e"] and list(frame.index) == [0, 1, 2, 3, 4]
    assert list(frame["drop_code"]) == ["not_positive", "duplicate", "", "not_a_number", ""]
    assert list(frame["drop_reason"])[1:4] == ["as row 2", "", "lr=x is no number"]
    assert list(frame["used"]) == [False, False, True, False, True]
    assert frame.attrs["not_started"] == 4
    assert list(frame["schedule_complete"]) == [True, True, False, True, True]
    assert frame["lr"].tolist()[3] == 0.5 and frame["mine"].tolist()[4] == 7.0 and frame["mine"].dtype == float
    assert list(frame["study"]) == [""] * 5 and frame["params"].dtype == float
    assert "index" not in frame and LABEL_SLACK == 0.05


def test_no_rows_are_a_frame_too() -> None:
    assert len(finish([], 0)) == 0


def record(kind: str, step: int, path: int | None = None, **metrics: Any) -> dict[str, Any]:
    made = {"kind": kind, "step": step, "tokens": 100 * step, "metrics": metrics}
    return made if path is None else {**made, "path": path}


def written(folder: Path, *records: Any) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records) + "\n")
    return path


def test_what_a_rollback_left_is_abandoned(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        record("train", 1),
        record("train", 2),
        record("spike", 3),
        record("train", 3),
        record("rollback", 3, 1, to_step=2),
        record("train", 3, 1),
        record("rollback", 4, 2, to_step=1),
        record("train", 2, 2),
    )
    found = recorded.read(path)
    assert [(one["kind"], one["step"], one.get("path", 0)) for one in found] == [
        ("train", 1, 0), ("spike", 3, 0), ("rollback", 3, 1), ("rollback", 4, 2), ("train", 2, 2),
    ]  # fmt: skip
    assert [one["step"] for one in recorded.read(path, "train")] == [1, 2]
    assert [one["kind"] for one in recorded.read(path, "spike")] == ["spike"]
    assert recorded.goings_back(found) == [(1, 2), (2, 1)]


def test_rollbacks_that_began_no_path_leave_nothing() -> None:
    old, without = record("rollback", 5, None, to_step=2), record("rollback", 5, 1)
    assert recorded.goings_back([old, without, record("train", 3, 2, to_step=1)]) == []
    assert recorded.path_of(record("train", 1, 3)) == 3 and recorded.path_of(record("train", 1)) == 0
    late = {"kind": "train", "metrics": {}}
    assert not recorded.abandoned(late, [(1, 0)]), "no step is the beginning"
    assert recorded.abandoned(record("train", 1), [(1, 0)]) and not recorded.abandoned(record("train", 1, 1), [(1, 0)])


def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{"kind": "train", "metr', "[1, 2]", '{"kind": 5, "metrics": {}}', '{"kind": "train", "metrics": 3}',
        '{"kind": "train", "metrics": {}, "step": "many"}', '{"metrics": {}}', "", record("train", 7),
    )  # fmt: skip
    assert [one["step"] for one in recorded.read(path)] == [7]
    assert recorded.read(tmp_path / "nothing.jsonl") == [] == recorded.read(tmp_path)


def test_validations_are_points_of_tokens_and_loss(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        record("validation", 0, loss=9.0),
        {**record("validation", 1, loss=5.0, bits_per_byte=2.0), "tokens": 0.5},
        record("validation", 2, loss=4.0),
        record("train", 2, loss=1.0),
        record("validation", 3, loss=math.nan),
        record("validation", 4, loss="high"),
        record("validation", 5),
        record("validation", 6, loss=-0.5),
    )
    assert validations(path) == [(0.5, 5.0), (200.0, 4.0), (600.0, -0.5)]
    assert validations(path, "bits_per_byte") == [(0.5, 2.0)]


def test_a_run_has_a_row_for_each_validation_before_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    written(
        tmp_path / "a",
        record("validation", 1, loss=5.0, bits_per_byte=1.5),
        record("validation", 2, loss=0.5, bits_per_byte=1.2),
        record("validation", 1, loss=4.5, bits_per_byte=1.4),
        record("validation", 3, loss=0.0),
        record("validation", 4, loss=3.0),
    )
    whole = {"tokens": 400.0, "flops": 8e4, "loss_unit": LOSS_UNIT, "flops_budget": 8e4, "run": ""}
    runs = pd.DataFrame([{"key": "a", "loss": 2.9, **whole}, {"key": "b", "loss": 2.8, **whole}])
    found = checkpoints(tmp_path, runs)
    assert list(found["key"]) == ["a@100", "a@200", "a", "b"] and list(found["run"]) == ["a", "a", "a", "b"]
    assert list(found["loss"]) == [4.5, 0.5, 2.9, 2.8], "the last of a restart counts"
    assert list(found["flops"]) == [2e4, 4e4, 8e4, 8e4] and found["flops_budget"].isna().all()
    bits = checkpoints(tmp_path, runs.assign(loss_unit="bits per byte"))
    assert list(bits["loss"])[:2] == [1.4, 1.2]
