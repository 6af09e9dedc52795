"""Ceilings of a GPU and collectives between two, as `study bench comm` measures them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from study.__main__ import main
from train.measure.device import ceilings
from train.spec.communication.cluster import read_profile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def test_a_gpu_has_ceilings() -> None:
    found = ceilings(torch.device("cuda", 0))
    assert found.copy is not None and 1e11 < found.copy < 2e13
    assert found.host_to_device is not None and 1e9 < found.host_to_device < 1e12
    assert found.launch is not None and 5e-7 < found.launch < 1e-4
    assert found.memory == torch.cuda.get_device_properties(0).total_memory
    assert found.matmul_rate("bf16") > found.matmul_rate("fp32") > 1e12
    assert all(rate.per_second > 1e12 for rate in found.attention)


def test_two_gpus_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "comm", "backend=nccl", "sizes=4K:16M", "seconds=0.1", "profile=two.yaml", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["complete"] and len(said["fits"]) == 6 and said["device"]["matmul"]
    profile = read_profile(tmp_path / "two.yaml")
    assert profile.levels[0].bandwidth > 1e9 and profile.compute.matmul_rate("bf16") > 1e12
