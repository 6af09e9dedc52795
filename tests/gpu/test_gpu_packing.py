"""Small points that share one GPU through NVIDIA's multi-process service."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from study.job.packed import multi_process_service
from tests.train.runs import LIMIT_SECONDS, finish, read_outcome, start, with_runtime, write_config
from train.spec.config import RunConfig

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="no multi-process service here"),
]


def test_two_runs_share_a_gpu_as_clients_of_one_service(tmp_path: Path, tiny: RunConfig) -> None:
    config = with_runtime(tiny, device="cuda")
    with multi_process_service(wanted=True) as variables:
        assert variables, "the service is there but did not start"
        runs = [start(write_config(tmp_path / name, config), env=variables) for name in ("one", "two")]
        for process in runs:
            finish(process)
        said = subprocess.run(
            ["nvidia-cuda-mps-control"], input="get_server_list\n", env={**os.environ, **variables},
            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True,
        )  # fmt: skip
    assert said.stdout.strip().isdigit(), "no run came through the service"
    losses = [read_outcome(tmp_path / name)["loss"] for name in ("one", "two")]
    assert losses[0] == losses[1]
