"""Small points that share one GPU: its memory, and NVIDIA's multi-process service."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from study.job.packed import DEVICES, multi_process_service, numbered
from tests.train.runs import LIMIT_SECONDS, finish, read_outcome, start, with_runtime, write_config
from train.runtime import gpu_share
from train.spec.config import RunConfig
from train.spec.gpu_share import VARIABLE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture
def whole() -> Iterator[torch.device]:
    """The GPU, with its limit lifted afterwards."""
    device = torch.device("cuda", 0)
    yield device
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_one_that_wants_more_than_its_part_runs_out_of_memory(
    whole: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.05")
    gpu_share.keep_to_it(whole)
    torch.cuda.empty_cache()
    most = gpu_share.memory(whole)
    assert gpu_share.room(whole) == most < torch.cuda.mem_get_info(whole)[1] / 20
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(most + (1 << 28), dtype=torch.uint8, device=whole)
    assert torch.empty(most // 2, dtype=torch.uint8, device=whole).numel() == most // 2


def test_two_runs_in_turn_on_a_gpu_give_what_one_gives(tmp_path: Path, tiny: RunConfig) -> None:
    config = with_runtime(tiny, device="cuda")
    finish(start(write_config(tmp_path / "alone", config)))
    runs = [start(write_config(tmp_path / name, config), env={VARIABLE: "0.5"}) for name in ("one", "two")]
    for process in runs:
        finish(process)
    alone, *shared = (read_outcome(tmp_path / name) for name in ("alone", "one", "two"))
    assert [one["gpu_share"] for one in shared] == [0.5, 0.5] and "gpu_share" not in alone
    assert all(one["loss"] == alone["loss"] for one in shared)


@pytest.mark.skipif(shutil.which("nvidia-cuda-mps-control") is None, reason="no multi-process service here")
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
