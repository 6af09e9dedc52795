"""Every mesh resumed on itself bit for bit, and on another one within the bound of parity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.fake_corpus import write_corpus
from tests.train.parallel import cells, resumed
from tests.train.runs import REPOSITORY
from tests.train.test_trainer_distributed import environments


@pytest.mark.slow
def test_every_mesh_is_resumed_on_itself_bitwise_and_on_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path, cells.VOCABULARY, train_tokens=20_000, validation_tokens=5_000)
    out = tmp_path / "rows.json"
    command = [sys.executable, "-W", "ignore", "-m", "tests.train.parallel.resumed", str(tmp_path), str(out)]
    ranks = [
        subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
        for env in environments(4)
    ]
    assert [process.wait(timeout=540) for process in ranks] == [0, 0, 0, 0]
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
