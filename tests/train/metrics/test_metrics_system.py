"""What a machine tells of its load: recorded texts of /proc, a library in place of NVML, and a run's records."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.runs import records_so_far, with_runtime, write_config
from train import run
from train.metrics.system import (
    SystemMetrics,
    cpu_ticks,
    load,
    node_memory,
    of_gpu,
    process_memory,
    system_metrics,
)
from train.runtime.distributed import World
from train.runtime.nvml import Gpu, Nvml
from train.spec.config import RunConfig

STAT = "cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 50 0 25 400 25 0 0 0 0 0\nintr 1\n"
LATER = "cpu  175 0 75 900 50 0 0 0 7 0\ncpu0 60 0 30 450 25 0 0 0 0 0\n"
MEMINFO = "MemTotal:       8000000 kB\nMemFree:         500000 kB\nMemAvailable:    6000000 kB\nHugePages_Total: 0\n"


def test_load_is_the_share_of_ticks_that_were_not_idle() -> None:
    assert cpu_ticks(STAT) == (150, 1000)
    assert load(cpu_ticks(STAT), cpu_ticks(LATER)) == {"cpu_utilization_percentage": 50.0}
    assert load((0, 0), cpu_ticks("")) == {}, "a system that has no such file"


def test_memory_in_use_is_what_is_not_available() -> None:
    found = node_memory(MEMINFO)
    assert found == {"system_memory_usage_megabytes": 2048.0, "system_memory_usage_percentage": 25.0}
    assert node_memory("") == {}
    pages = process_memory("5000 1000 300 1 0 400 0\n")
    assert pages["process_memory_usage_megabytes"] > 4
    assert process_memory("") == {}


class Library:
    """NVML of a machine with one GPU, that meters no power."""

    def __init__(self, start: int = 0) -> None:
        self._start = start

    def nvmlInit_v2(self) -> int:
        return self._start

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, gpu: Any) -> int:
        gpu._obj.value = 1
        return 0 if uuid == b"GPU-a" else 6

    def nvmlDeviceGetUtilizationRates(self, gpu: ctypes.c_void_p, rates: Any) -> int:
        rates._obj.gpu, rates._obj.memory = 93, 40
        return 0

    def nvmlDeviceGetMemoryInfo(self, gpu: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 80 * 10**9, 20 * 10**9
        return 0

    def nvmlDeviceGetPowerUsage(self, gpu: ctypes.c_void_p, power: Any) -> int:
        return 3


def test_a_gpu_tells_what_its_driver_knows() -> None:
    known, unknown = Nvml(["GPU-a", "GPU-b"], Library()).read()
    assert known == Gpu(busy=93, used=20 * 10**9, total=80 * 10**9, power=None)
    assert of_gpu(known) == {
        "utilization_percentage": 93,
        "memory_usage_megabytes": 20_000,
        "memory_usage_percentage": 25,
    }
    assert unknown == Gpu()
    assert of_gpu(unknown) == {}


@pytest.mark.parametrize("library", [Library(start=9), object()])
def test_without_a_driver_gpus_tell_nothing(library: Any) -> None:
    assert Nvml(["GPU-a"], library).read() == [Gpu()]


def test_samples_are_as_far_apart_as_asked_for(tmp_path: Path) -> None:
    def write(stat: str) -> None:
        (tmp_path / "stat").write_text(stat)

    now = [100.0]
    write(STAT)
    (tmp_path / "meminfo").write_text(MEMINFO)
    system = SystemMetrics(10.0, lambda: [Gpu(busy=50), Gpu()], tmp_path, lambda: now[0])
    assert system.due() == {}, "the first sample is of the first ten seconds"
    now[0] = 109.9
    assert system.due() == {}
    now[0] = 110.0
    write(LATER)
    found = system.due()
    assert found.pop("process_cpu_utilization_percentage") >= 0
    assert found == {
        "cpu_utilization_percentage": 50.0,
        "system_memory_usage_megabytes": 2048.0,
        "system_memory_usage_percentage": 25.0,
        "gpu_0_utilization_percentage": 50,
    }
    now[0] = 119.0
    assert system.due() == {}


def test_none_are_taken_where_none_are_wanted() -> None:
    ticks = iter(range(0, 1000, 100))
    assert SystemMetrics(0.0, clock=lambda: float(next(ticks))).due() == {}


def test_a_run_records_its_machine_and_trains_as_without(tmp_path: Path, tiny: RunConfig) -> None:
    losses = []
    for seconds in (0.0, 1e-9):
        folder = tmp_path / str(seconds)
        assert run.main(["--config", str(write_config(folder, with_runtime(tiny, system_seconds=seconds)))]) == 0
        found = records_so_far(folder)
        losses.append([(r["step"], r["metrics"]["loss"]) for r in found if r["kind"] in ("train", "validation")])
        system = [r for r in found if r["kind"] == "system"]
    assert losses[0] == losses[1]
    assert [r["step"] for r in system] == [r["step"] for r in found if r["kind"] == "train"]
    assert {"system_memory_usage_megabytes", "process_memory_usage_megabytes"} <= set(system[-1]["metrics"])
    assert 0 <= system[-1]["metrics"]["system_memory_usage_percentage"] <= 100


def test_a_machine_without_gpus_is_not_asked_for_them() -> None:
    system = system_metrics(1e-9, World(), torch.device("cpu"))
    assert not [name for name in system.due() if name.startswith("gpu")]
