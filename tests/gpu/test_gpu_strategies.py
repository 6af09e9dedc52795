"""`study bench strategies` on two GPUs: all three train alike, and a rank runs out of GPU memory for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from study.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 CUDA devices")]


def test_strategies_on_two_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ranks=2", "backend=nccl", "steps=8", "failures=yes", "model.width=512", "model.layers=4"]
    words += ["precision=bf16", "data.sequence_length=512", f"out={tmp_path / 'out'}"]
    assert main(["bench", "strategies", *words, "--json"]) == 0
    told = capsys.readouterr()
    said = json.loads(told.out)
    with capsys.disabled():
        print(told.out)
    rows = {row["strategy"]: row for row in said["rows"]}
    assert list(rows) == ["ddp", "fsdp1", "fsdp2"] and not said["problems"]
    assert all(row["memory_gpu"] > 0 and row["exposed"] >= 0 for row in rows.values())
    assert rows["ddp"]["memory_gpu"] > rows["fsdp2"]["memory_gpu"]
    kills = [one for one in said["failures"] if "SIGKILL" in one["failure"]]
    assert len(kills) == 3 and all(one["planted"] for one in kills)
    memory = [one for one in said["failures"] if "memory" in one["failure"]]
    assert len(memory) == 3 and all(one["planted"] and "OutOfMemoryError" in one["happened"] for one in memory)
