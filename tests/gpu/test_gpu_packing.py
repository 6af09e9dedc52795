"""Small points that share one GPU through NVIDIA's multi-process service."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from study.job.packed import DEVICES, multi_process_service, numbered
from tests.train.runs import LIMIT_SECONDS, finish, read_outcome, start, with_runtime, write_config
from train.spec.config import RunConfig

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="no multi-process service here"),
]


def test_two_runs_share_a_gpu_as_clients_of_one_service(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_runtime(tiny, device="cuda")
    last = os.environ.get(DEVICES, "").split(",")[-1] or str(torch.cuda.device_count() - 1)
    monkeypatch.setenv(DEVICES, last)  # a job on a node's last GPU: where there are several, its number is not 0
    with multi_process_service(wanted=True) as variables:
        assert variables, "the service is there but did not start"
        client = {**variables, DEVICES: numbered(last) or ""}
        runs = [start(write_config(tmp_path / name, config), env=client) for name in ("one", "two")]
        for process in runs:
            finish(process)
        said = subprocess.run(
            ["nvidia-cuda-mps-control"], input="get_server_list\n", env={**os.environ, **variables},
            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True,
        )  # fmt: skip
    assert said.stdout.strip().isdigit(), "no run came through the service"
    losses = [read_outcome(tmp_path / name)["loss"] for name in ("one", "two")]
    assert losses[0] == losses[1]
