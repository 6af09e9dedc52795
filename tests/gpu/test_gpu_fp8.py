"""Sharded weights gathered in fp8 on two GPUs through NCCL, beside the same gathered in bf16, eager and compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.fake_corpus import write_corpus
from tests.forked import SECONDS, environments
from tests.train.parallel import cells, gathered
from tests.train.runs import REPOSITORY

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices here"),
    pytest.mark.slow,
]


def test_weights_gathered_in_fp8_train_as_weights_gathered_in_bf16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path, cells.VOCABULARY, train_tokens=20_000, validation_tokens=5_000)
    out = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tests.train.parallel.gathered", str(tmp_path), str(out), "cuda"]
    ranks = [
        subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True)
        for env in environments(2)
    ]
    for rank in ranks:
        _, err = rank.communicate(timeout=SECONDS)
        assert rank.returncode == 0, err
    every = json.loads(out.read_text())
    with capsys.disabled():
        print("\n" + "\n".join(map(str, every[0])))
    # Embeddings' gradients are added up in no fixed order on a GPU.
    bad = gathered.failures(every, fixed=False)
    assert not bad, "\n".join(bad)
