"""Which groups of ranks links join, and that a device's ceilings are measured, here of a CPU at small sizes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from train.measure.__main__ import device_of, main, processor
from train.measure.device import (
    attention_rates,
    copy_rate,
    grouped_rates,
    host_rate,
    launch_seconds,
    matmul_rates,
    seconds_of,
)
from train.measure.links import LevelGroups, levels_of
from train.runtime.distributed import World

CPU = torch.device("cpu")


def test_ranks_of_one_host_are_one_level() -> None:
    assert levels_of(["a", "a", "a"]) == (LevelGroups("node", ((0, 1, 2),)),)


def test_hosts_are_joined_by_a_rank_of_each() -> None:
    node, network = levels_of(["a", "a", "b", "b", "c", "c"])
    assert node == LevelGroups("node", ((0, 1), (2, 3), (4, 5)))
    assert network == LevelGroups("network", ((0, 2, 4), (1, 3, 5)))
    assert levels_of(["a", "b"]) == (LevelGroups("network", ((0, 1),)),)


def test_hosts_with_different_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different numbers of ranks \(a 2, b 1\): start as many on each"):
        levels_of(["a", "a", "b"])


@pytest.mark.parametrize(("there", "number"), [(1, 0), (4, 3), (8, 3)])
def test_a_rank_that_is_given_one_gpu_alone_takes_that(
    there: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    world = World(3, 4, local_rank=3)
    assert device_of("nccl", world) == torch.device("cuda", number)
    assert device_of("gloo", world) == CPU


@pytest.mark.parametrize("sizes", ["abc", "0", "-5", "1024,", "1.5"])
def test_sizes_that_are_none_are_said_in_a_line(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", "nowhere", f"--sizes={sizes}"])
    said = capsys.readouterr().err
    assert f"--sizes: {sizes!r} is not allowed: give whole numbers from 1 on" in said and said.count("\n") == 1


def test_a_device_has_its_rates() -> None:
    rates = list(matmul_rates(CPU, ((64, 32, 16),)))
    assert [(rate.of, rate.format) for rate in rates] == [("64 x 32 x 16", name) for name in ("bf16", "fp16", "fp32")]
    forward, both = attention_rates(CPU, 1, 2, 32, 8)
    assert (forward.of, both.of) == ("1 x 2 x 32 x 8, causal, forward", "1 x 2 x 32 x 8, causal, forward and backward")
    (grouped,) = grouped_rates(CPU, ((4, 16, 32, 8),))
    assert (grouped.of, grouped.format) == ("4 x 16 x 32 x 8", "bf16")
    found = [
        *(rate.per_second for rate in (*rates, grouped, forward, both)),
        copy_rate(CPU, 4096),
        host_rate(CPU, 4096),
    ]
    assert all(0 < rate < 1e15 for rate in found)
    assert launch_seconds(CPU) > 0


def test_the_median_of_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 90.0, 100.0, 110.0, 200.0, 230.0, 300.0, 320.0, 400.0, 490.0, 500.0, 520.0])
    monkeypatch.setattr("train.measure.device.time.perf_counter", lambda: next(clock))
    assert seconds_of(lambda: None, CPU, calls=10) == 2.0, "of 10, 30, 20, 90 and 20 seconds, not of the first 90"


def test_a_launch_is_one_of_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 4.0)
    monkeypatch.setattr("train.measure.device.time.perf_counter", lambda: next(clock))
    assert launch_seconds(CPU) == 4e-3


def test_nccl_without_a_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["--out", str(tmp_path / "x"), "--sizes", "4", "--backend", "nccl"]) == 2
    assert "torch finds no CUDA device: use --backend gloo" in capsys.readouterr().err


def test_a_collective_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path / "x"), "--sizes", "4", "--collectives", "gossip"])
    assert "'gossip' is none: choose from all_reduce" in capsys.readouterr().err


def test_the_processor_is_named_as_far_as_it_is_known(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Toy 9\n\nprocessor : 1\nmodel name\t: Toy 9\n")
    assert processor(info) == "Toy 9, 2 cores"
    assert json.dumps(processor(tmp_path / "none"))
