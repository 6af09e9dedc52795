"""Predicted step times beside measured ones: errors within their goals, further measurements from a file."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.memory_predicted import names
from benchmarks.step_time_predicted import (
    CALIBRATION,
    PROFILE,
    by_group,
    compare,
    main,
    read_measured,
    recorded,
    summary,
    table,
)
from train.spec.communication.cluster import read_profile


def test_recorded_steps_are_predicted_within_the_goals() -> None:
    """Median 10 %, worst 25 %, of rows that no constant is from; the best within 5 % of the measured best."""
    rows = compare(recorded(), read_profile(PROFILE))
    errors = [abs(row.error) for row in rows if row.held_out and row.error is not None]
    assert len(errors) >= 20
    assert statistics.median(errors) <= 0.05 and max(errors) <= 0.15, "as far as the model reaches today"
    calibrated = {row.name: row.error for row in rows if row.name in CALIBRATION}
    assert calibrated.keys() == CALIBRATION.keys()
    assert all(error is not None and abs(error) < 0.002 for error in calibrated.values())
    shares = [float(line.split("% fewer")[0].split()[-1]) for line in by_group(rows)]
    assert len(shares) >= 8 and max(shares) <= 5.0


def test_every_row_of_the_memory_benchmark_is_predicted() -> None:
    rows = {row.name: row for row in compare({}, read_profile(PROFILE))}
    assert rows.keys() == set(names())
    assert all(row.predicted.seconds > 0 and row.measured is None and not row.held_out for row in rows.values())
    assert summary(rows.values()) == "No row that is held out was measured."
    assert "| ours-150m | 1 | " in table(list(rows.values()))


def test_further_measurements_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h200.json"
    name = "ours-150m+memory.checkpointing=full"
    path.write_text(json.dumps([
        {"row": name, "gpus": 1, "step_ms": 150.0, "gib_allocated": 5.6},
        {"row": "ours-1b+parallel.micro_batch_sequences=1", "gpus": 1, "step_ms": None},
    ]))  # fmt: skip
    assert read_measured(path) == {name: (150.0, "h200.json")}
    path.write_text(json.dumps({"about": "", "rows": json.loads(path.read_text())}))
    assert read_measured(path) == {name: (150.0, "h200.json")}
    main(["--measured", str(path), "--write", str(tmp_path)])
    text = (tmp_path / "step_time_predicted.md").read_text()
    assert capsys.readouterr().out == text
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    assert "| 150.00 |" in line and "| held out |" in line and line.endswith("| h200.json |")
    assert len(text.splitlines()) == len(set(text.splitlines())) + text.splitlines().count("") - 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "it has to be a JSON list"), ('[{"step_ms": 1}]', "row"), ('[{"row": "x", "step_ms": 1}]', "no row 'x'")],
)
def test_a_file_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_measured(tmp_path / "m.json")
