"""The same run on a GPU: the CPU's losses in fp32, close to them in bf16, and on from a checkpoint after a kill."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.faults import BRAKE
from tests.train.runs import faulty, finish, read_outcome, records, records_so_far, start, with_runtime, write_config
from train.spec.config import PrecisionConfig, RunConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def losses(folder: Path) -> list[float]:
    return [r["metrics"]["loss"] for r in records(folder) if r["kind"] == "train"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: RunConfig) -> Path:
    """The folder of runs that have ended. They run at once: a run of this size takes the time of its start."""
    folder = tmp_path_factory.mktemp("gpu")
    on_gpu = with_runtime(tiny, device="cuda")
    configs = {
        "cpu": tiny,
        "fp32": replace(on_gpu, precision=PrecisionConfig(name="fp32")),
        "bf16": replace(on_gpu, precision=PrecisionConfig(name="bf16")),
        "watched": with_runtime(on_gpu, system_seconds=1e-9),
    }
    for process in [start(write_config(folder / name, config)) for name, config in configs.items()]:
        finish(process)
    return folder


@pytest.fixture(scope="module")
def on_cpu(runs: Path) -> list[float]:
    return losses(runs / "cpu")


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 2e-4), ("bf16", 3e-2)])
def test_losses_are_those_of_the_cpu(runs: Path, on_cpu: list[float], precision: str, bound: float) -> None:
    folder = runs / precision
    assert losses(folder) == pytest.approx(on_cpu, abs=bound)
    assert read_outcome(folder)["device"].startswith("cuda")


def test_a_run_tells_how_busy_its_gpu_was(runs: Path, on_cpu: list[float]) -> None:
    assert losses(runs / "watched") == pytest.approx(on_cpu, abs=2e-4)
    found = [r["metrics"] for r in records_so_far(runs / "watched") if r["kind"] == "system"]
    assert found
    for sample in found:
        assert 0 <= sample["gpu_0_utilization_percentage"] <= 100
        assert 0 < sample["gpu_0_memory_usage_percentage"] < 100
        assert sample["gpu_0_memory_usage_megabytes"] > 100
        assert "gpu_1_utilization_percentage" not in sample


def test_killed_and_resumed(tmp_path: Path, tiny: RunConfig, on_cpu: list[float]) -> None:
    folder = tmp_path / "killed"
    config = write_config(folder, with_runtime(tiny, device="cuda", checkpoint_seconds=0.0))
    (folder / BRAKE).touch()
    process = faulty(config, "brake", "--step", "10", "--rank", "0")
    # A checkpoint is written while steps go on, and steps of this size are faster than any disk.
    while len(records_so_far(folder)) < 8 or not list(folder.glob("checkpoints/*/manifest.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "resumed" in finish(start(config))
    assert losses(folder) == pytest.approx(on_cpu, abs=2e-4)
