"""A study's files that are damaged are named."""

import json
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
