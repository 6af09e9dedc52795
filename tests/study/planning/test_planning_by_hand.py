"""What jobs ask and which points share a GPU, number by number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.executors.job_spec import JobSpec
from study.executors.slurm.nodes import Nodes, Site
from study.planning import packing, sizing
from study.planning.packing import Packing
from study.storage.layout import StudyFolder
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, PrecisionConfig, RunConfig
from train.spec.footprint import footprint
from train.spec.mesh import Axes
from train.spec.resolve import resolve

SLURM = ClusterConfig(executor="slurm")


def run(width: int = 256, **changes: object) -> RunConfig:
    config = RunConfig(
        ModelConfig(width=width, layers=4, head_dim=64),
        DataConfig(vocab_size=4096, sequence_length=256),
        BatchConfig(tokens=4096),
        budget=BudgetConfig(tokens=10**6),
    )
    return resolve(replace(config, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "step"),
    [(0.1, 1), (1, 1), (1.01, 1.5), (1.5, 1.5), (1.51, 2), (2, 2), (2.01, 3), (3, 3), (3.01, 4), (4.5, 6), (6.5, 8),
     (8.01, 12), (12.5, 16), (17, 24), (25, 32), (500, 512), (513, 768)],
)  # fmt: skip
def test_memory_is_asked_in_few_steps(value: float, step: float) -> None:
    assert sizing._step(value) == step


@pytest.mark.parametrize(
    ("minutes", "asked"),
    [(0.2, 5), (5, 5), (5.1, 10), (10.5, 15), (15.5, 20), (21, 30), (31, 45), (46, 60), (61, 90), (91, 120), (121, 180),
     (181, 240), (241, 360), (360, 360), (361, 480), (481, 720), (721, 960), (961, 1440), (1441, 2160), (2160, 2160),
     (2161, 2880)],
)  # fmt: skip
def test_time_is_asked_in_few_steps(minutes: float, asked: int) -> None:
    assert sizing._rounded(minutes) == asked


def test_a_job_takes_as_long_as_its_fullest_lane_and_a_start() -> None:
    cluster = replace(SLURM, margin=1.5)
    seconds = [600.0, 400.0, 300.0]
    lanes = JobSpec(pack=2, points_per_job=3)
    assert sizing._job_minutes(seconds, JobSpec(points_per_job=3), cluster) == pytest.approx(2 + 1300 * 1.5 / 60)
    assert sizing._job_minutes(seconds, lanes, cluster) == pytest.approx(2 + 700 * 1.5 / 60)
    shared = replace(lanes, pack_gpus="slices")
    assert sizing._job_minutes(seconds, shared, cluster) == pytest.approx(2 + 700 * 2 * 1.5 / 60), "each half as fast"
    assert sizing._job_minutes(seconds, replace(lanes, warm=False), cluster) == pytest.approx(4 + 700 * 1.5 / 60)


@pytest.mark.parametrize(
    ("nodes", "gpus", "tasks", "ranks"), [(1, 0, 1, 1), (2, 4, 4, 8), (2, 0, 3, 6), (1, 1, 1, 1), (0, 0, 0, 1)]
)
def test_ranks_are_gpus_or_processes(nodes: int, gpus: int, tasks: int, ranks: int) -> None:
    assert sizing.ranks(replace(SLURM, nodes=nodes, gpus_per_node=gpus, tasks_per_node=tasks)) == ranks


@pytest.mark.parametrize("width", [256, 2048])
def test_memory_of_a_host_is_that_of_its_processes_and_what_they_hold(width: int) -> None:
    config, cluster = run(width), replace(SLURM, margin=1.3, auto=("memory",))

    def next_step(value: float) -> float:
        return min(step for step in (base * 2.0**k for base in (1.0, 1.5) for k in range(12)) if step >= value)

    on_cpu = footprint(config, Axes(), "cpu").total / 1e9
    assert sizing.size(cluster, config, None, Site()).mem_gb == next_step(1.0 + on_cpu * 1.3)
    gpu = replace(cluster, gpus_per_node=1)
    states = footprint(config, Axes(), "cuda").states / 1e9
    assert sizing.size(gpu, config, None, Site()).mem_gb == next_step(4.0 + states * 1.3)
    pair = replace(gpu, gpus_per_node=2, tasks_per_node=2)
    half = footprint(config, Axes(dp_replicate=2), "cuda").states / 1e9
    assert sizing.size(pair, config, None, Site()).mem_gb == next_step(2 * (4.0 + half * 1.3))
    seven = replace(gpu, gpus_per_node=7, tasks_per_node=7)
    assert sizing.size(seven, run(256), None, Site()).mem_gb == 32, "seven processes of 4 GB, and little besides"
    with_offload = replace(config, memory=replace(config.memory, offload="optimizer"))
    need = footprint(with_offload, Axes(), "cuda")
    assert need.host > 0
    assert sizing.size(gpu, with_offload, None, Site()).mem_gb == next_step(
        4.0 + (need.states + 2 * need.host) / 1e9 * 1.3
    )


NODE = Site((Nodes("gpu", True, 4, 8, 64.0, 4, frozenset(), None, None),), True)


def test_a_job_that_no_node_can_hold_is_refused_with_points_and_without(tmp_path: Path) -> None:
    too_many = replace(SLURM, cpus_per_task=9)
    with pytest.raises(ValueError, match="9"):
        sizing.job_specs(StudyFolder(tmp_path), [], too_many, NODE)
    assert sizing.job_specs(StudyFolder(tmp_path), [], replace(SLURM, cpus_per_task=8), NODE) == []


def test_what_no_gpu_can_hold_is_said_with_the_most_that_were_tried() -> None:
    wide = run(8192, parallel=replace(run().parallel, dp_replicate=1, dp_shard=None, zero=3))
    cluster = replace(SLURM, auto=("gpus",), gpu_memory_gb=0.001)
    with pytest.raises(
        ValueError, match=r"cluster\.auto: 4096 GPU\(s\) would each need .* parallel\.tp or parallel\.pp"
    ):
        sizing.layout(cluster, replace(wide, runtime=replace(wide.runtime, device="cuda")), Site())
    threes = replace(wide, parallel=replace(wide.parallel, dp_replicate=3))
    with pytest.raises(ValueError, match=r"cluster\.auto: 3072 GPU\(s\) would each need"):
        sizing.layout(cluster, replace(threes, runtime=replace(wide.runtime, device="cuda")), Site())


def test_gains_are_those_of_the_table_that_was_measured() -> None:
    assert packing.GAINS == {
        "slices": {1.03e11: {4: 0.92}, 1.45e12: {4: 0.92}},
        "mps": {1.03e11: {4: 1.56}, 1.45e12: {4: 1.03}, 2.3e12: {4: 1.07}},
    }
    mps = packing.GAINS["mps"]
    assert [packing.gain(flops, 4, mps) for flops in (0.514e11, 0.516e11, 4.59e12, 4.61e12)] == [0.0, 1.56, 1.07, 0.0]
    assert packing.gain(4.6e12, 4, mps) == 1.07, "twice the largest that was measured"
    assert packing.gain(1.45e12, 4, mps) == pytest.approx(1.03)
    assert packing.gain(1e11, 2, mps) == 0.0


def test_a_fifth_more_is_worth_sharing_a_gpu() -> None:
    small = run(precision=PrecisionConfig(name="bf16"))
    flops = packing.step_flops(small)

    def chosen(**gains: float) -> Packing | None:
        counts = {int(name[1:]): gain for name, gain in gains.items()}
        return packing.choose(small, 80.0, gains={"mps": {flops: counts}})

    assert chosen(n4=1.2) == Packing(4, "mps", 1.2) and chosen(n4=1.1999) is None
    assert chosen(n2=1.456, n4=1.5) == Packing(2, "mps", 1.456), "0.97 of the best does"
    assert chosen(n2=1.454, n4=1.5) == Packing(4, "mps", 1.5)
    assert packing.choose(small, 80.0, lambda count: False, {"mps": {flops: {4: 3.0}}}) is None


def test_lanes_that_a_job_cannot_fill_are_left_out() -> None:
    shared = JobSpec(pack=4, pack_gpus="mps")
    assert [sizing._filled(shared, points).pack for points in (1, 2, 3, 4, 5, 6, 8, 9)] == [1, 2, 3, 4, 3, 3, 4, 3]
    assert sizing._filled(shared, 1).pack_gpus == "own" and sizing._filled(shared, 2).pack_gpus == "mps"
    turns = replace(shared, points_per_job=12)
    assert [sizing._filled(turns, points).pack for points in (1, 3, 5, 13)] == [1, 3, 4, 4]
