"""Speed metrics, late values and times, phases of a step, exposed communication, memory told: without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.runs import read_outcome, records, with_runtime, write_config
from train import evaluate, run
from train import trainer as training
from train.checkpoint.manager import CheckpointManager
from train.metrics.deferred import Late
from train.metrics.profiler import communication, covered, memory_told, starts
from train.metrics.throughput import Devices, measured, rates
from train.metrics.timers import Clock
from train.runtime.signals import StopFlag
from train.spec.config import ProfileConfig, RunConfig
from train.spec.device_peaks import stated

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "precision", "wanted"),
    [
        ("NVIDIA H200", "bf16", 989.5e12),
        ("NVIDIA H100 80GB HBM3", "fp16", 989.5e12),
        ("NVIDIA H100 PCIe", "bf16", 756.5e12),
        ("NVIDIA H100 PCIe", "fp8", 756.5e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("Tesla V100-SXM2", "bf16", None),
        ("Some other device", "bf16", None),
    ],
)
def test_stated_peaks(name: str, precision: str, wanted: float | None) -> None:
    assert stated(name, precision) == wanted


def test_mfu_is_model_flops_over_the_peak_of_all_devices() -> None:
    found = rates(1000.0, 6 * 10**9, Devices(4, stated=10e12, measured=6e12))
    assert found["model_flops_per_second"] == 6e12
    assert found["mfu"] == pytest.approx(0.15)
    assert found["mfu_measured"] == pytest.approx(0.25)
    assert found["tokens_per_second_per_device"] == 250.0
    assert not {"mfu", "mfu_measured"} & rates(1.0, 1, Devices(1)).keys()


def test_a_measured_peak_is_that_of_a_product() -> None:
    assert 1e8 < measured(CPU, torch.float32) < 1e15


def test_on_a_cpu_values_are_there_at_once_and_in_order() -> None:
    late: Late[str] = Late(CPU)
    for stamp, scalars in (
        ("a", [torch.tensor(1.0), torch.tensor(2.0, dtype=torch.float64)]),
        ("b", [torch.tensor(3)]),
    ):
        late.begin()
        late.put(stamp, scalars)
    found = list(late.arrived())
    assert [step[:2] for step in found] == [("a", [1.0, 2.0]), ("b", [3.0])]
    assert all(step.seconds > 0 for step in found)
    late.begin()
    late.put("c", [torch.tensor(4.0)])
    assert late.forget() > 0
    assert list(late.arrived(everything=True)) == []


class Simulated:
    """A device that works off what it is given while the host goes on: a clock of its own for each of them [s]."""

    def __init__(self) -> None:
        self.host = self.done = 0.0

    def work(self, seconds: float, launch: float = 0.0) -> None:
        self.host += launch
        self.done = max(self.done, self.host) + seconds

    def wait(self, until: float | None = None) -> None:
        self.host = max(self.host, self.done if until is None else until)


class SimulatedMark:
    def __init__(self, device: Simulated) -> None:
        self.device, self.at = device, max(device.host, device.done)

    def wait(self) -> None:
        self.device.wait(self.at)

    def since(self, earlier: SimulatedMark, /) -> float:
        return self.at - earlier.at


@pytest.mark.parametrize("launch", [0.25, 1.5])  # the device is behind the host, or waits for it
def test_on_a_device_that_runs_behind_every_step_has_its_own_time(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch, launch: float
) -> None:
    """A run whose steps take the same time, with validations of 20 s and checkpoints of 7 s between them."""
    device = Simulated()

    def step(*positional: Any, **named: Any) -> Any:
        device.work(1.0, launch)
        return train_step(*positional, **named)

    def evaluated(*positional: Any, **named: Any) -> Any:
        device.work(20.0, 0.5)
        device.wait()
        return evaluate.evaluate(*positional, **named)

    def save(self: CheckpointManager, *positional: Any, **named: Any) -> None:
        device.host += 7.0
        saved(self, *positional, **named)

    saved = CheckpointManager.save
    monkeypatch.setattr(CheckpointManager, "save", save)
    train_step = training.Trainer.train_step
    monkeypatch.setattr(training.Trainer, "train_step", step)
    monkeypatch.setattr(training, "evaluate", evaluated)
    monkeypatch.setattr(training, "Late", lambda _: Late(CPU, lambda: SimulatedMark(device)))
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    config = write_config(tmp_path / "run", with_runtime(tiny, checkpoint_keep_steps=4, log_steps=3))
    assert run.main(["--config", str(config)]) == 0
    rows = [r for r in records(config.parent) if r["kind"] == "train"]
    assert [r["step"] for r in rows] == list(range(3, 31, 3))
    validated = {r["step"] for r in records(config.parent) if r["kind"] == "validation"}
    assert len(validated) == 4
    # A step is as long as the slower of host and device needs, and as both do where there was nothing to run ahead of.
    alone = {1, *range(5, 31, 4), *(step + 1 for step in validated)}
    wanted = [launch + 1.0 if step in alone else max(launch, 1.0) for step in range(1, 31)]
    for row in rows:
        three = wanted[row["step"] - 3 : row["step"]]
        assert row["metrics"]["seconds_step"] == pytest.approx(sum(three) / 3)
    assert read_outcome(config.parent)["seconds"]["train"] == pytest.approx(sum(wanted))


def test_phases_are_counted_only_in_timed_steps_and_add_up() -> None:
    clock = Clock(CPU)
    times = clock.begin(timed=True)
    for _ in range(2):
        with clock.phase("forward"), clock.phase("inner"):
            pass
    seconds = times.seconds()
    assert seconds.keys() == {"forward", "inner"}
    assert seconds["forward"] >= seconds["inner"] > 0
    times = clock.begin(timed=False)
    with clock.phase("forward"):
        pass
    assert times.seconds() == {}


@pytest.mark.parametrize(
    ("intervals", "wanted"),
    [([], 0), ([(0, 1)], 1), ([(0, 2), (1, 3)], 3), ([(5, 6), (0, 1)], 2), ([(0, 9), (1, 2)], 9)],
)
def test_length_of_a_union(intervals: list[tuple[float, float]], wanted: float) -> None:
    assert covered(intervals) == wanted


def test_communication_is_exposed_where_nothing_else_runs() -> None:
    kernels = [("gemm", 0.0, 4.0), ("ncclDevKernel_AllGather", 3.0, 6.0), ("gemm", 5.0, 8.0), ("nccl", 9.0, 10.0)]
    found = communication(kernels, 2)
    assert found == {"seconds_busy": 4.5, "seconds_communication": 2.0, "seconds_communication_exposed": 1.0}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (ProfileConfig(), []),
        (ProfileConfig(start=1), [0]),
        (ProfileConfig(start=5), [3]),
        (ProfileConfig(start=5, every=8), [3, 11, 19]),
    ],
)
def test_recordings_begin_one_step_early_to_warm_up(config: ProfileConfig, wanted: list[int]) -> None:
    assert [step for step in range(20) if starts(step, config)] == wanted


def test_out_of_memory_leaves_a_snapshot_and_goes_on_as_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(torch.OutOfMemoryError), memory_told(tmp_path, 3, lambda path: Path(path).touch()):
        raise torch.OutOfMemoryError("no memory")
    assert (tmp_path / "profile" / "out-of-memory-rank-3.pickle").exists()
    assert "out of memory on rank 3" in capsys.readouterr().err
    with pytest.raises(KeyError), memory_told(tmp_path, 4, lambda path: Path(path).touch()):
        raise KeyError
    assert not (tmp_path / "profile" / "out-of-memory-rank-4.pickle").exists()
