"""What runs of a study say of themselves, and its files that are damaged."""

import json
import math
from pathlib import Path

import pytest

from analysis.inputs.study import from_runs


def test_an_outcome_that_was_cut_off_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "abc").mkdir()
    (tmp_path / "points.jsonl").write_text(json.dumps({"key": "abc", "config": {}}) + "\n")
    (tmp_path / "abc" / "outcome.json").write_text('{"state": "comp')
    with pytest.raises(
        ValueError, match=r"abc/outcome\.json is not whole \(.*\): .* train\.run --config .*abc/config\.yaml"
    ):
        from_runs(tmp_path)


@pytest.mark.parametrize(("unit", "last", "lowest"), [("nats per token", 2.0, 1.9), ("bits per byte", 0.8, 0.76)])
def test_the_lowest_loss_and_the_epochs_of_a_run(tmp_path: Path, unit: str, last: float, lowest: float) -> None:
    config: dict[str, dict[str, str]] = {name: {} for name in ("model", "data", "optim", "batch", "budget", "schedule")}
    lines = [json.dumps({"key": key, "config": config}) + "\n" for key in ("abc", "old")]
    (tmp_path / "points.jsonl").write_text("".join(lines))
    losses = {"validation_nats_per_token": 2.0, "validation_bits_per_byte": 0.8}
    more = {"lowest_validation_nats_per_token": 1.9, "lowest_validation_tokens": 800}
    numbers = {"state": "completed", "tokens": 1000, "flops": 6e6, "params": {"matmul": 1000}}
    for key, said in (
        ("abc", numbers | {"loss": losses | more, "epochs": 8.5}),
        ("old", numbers | {"loss": losses}),  # of an earlier version
    ):
        (tmp_path / key).mkdir()
        (tmp_path / key / "outcome.json").write_text(json.dumps(said))
    rows = {row["key"]: row for row in from_runs(tmp_path, loss_unit=unit).to_dict("records")}
    assert [rows["abc"][name] for name in ("loss", "lowest_loss", "epochs")] == pytest.approx([last, lowest, 8.5])
    assert math.isnan(rows["old"]["lowest_loss"])
    assert math.isnan(rows["old"]["epochs"])
