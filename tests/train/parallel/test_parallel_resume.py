"""Every mesh resumed on itself bit for bit, and on another one within the bound of parity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fake_corpus import write_corpus
from tests.forked import run_ranks
from tests.train.parallel import cells, resumed


@pytest.mark.slow
def test_every_mesh_is_resumed_on_itself_bitwise_and_on_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path, cells.VOCABULARY, train_tokens=20_000, validation_tokens=5_000)
    out = tmp_path / "rows.json"
    run_ranks(4, "tests.train.parallel.resumed", tmp_path, out)
    rows = json.loads(out.read_text())
    assert [tuple(row["pair"]) for row in rows] == list(resumed.PAIRS)
    for row in rows:
        source, target, optimizer = row["pair"]
        assert row["error"] is None, f"{row['pair']}: {row['error']}"
        with capsys.disabled():
            same = "same bits" if row["bitwise"] else f"loss {row['loss']:.1e}, norm {row['norm']:.1e}"
            print(f"\n| {source} -> {target}, {optimizer} | {same} |", end="")
        assert row["data"], f"{row['pair']}: other sequences follow"
        assert row["bitwise"] or source != target, row
        assert row["loss"] <= 1e-6, row
        assert row["norm"] <= 1e-5, row
