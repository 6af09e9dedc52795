"""Which points share a GPU: by what was measured, by memory, and by what a job may ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from study.config.schema import ClusterConfig
from study.executors.slurm.nodes import Nodes, Site
from study.planning import packing, sizing
from study.planning.packing import Packing, choose, fits, gain, most_side_by_side, side_by_side, step_flops
from study.records.point import Point, point
from study.storage.layout import StudyFolder
from study.sweep import dry_run
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, PrecisionConfig, RunConfig
from train.spec.counts import flops_per_token
from train.spec.mesh import Axes
from train.spec.micro_batch import need
from train.spec.resolve import resolve

GAINS: packing.Gains = {
    "slices": {1e11: {2: 1.3, 4: 1.5}, 1e13: {2: 1.1, 4: 1.1}},
    "mps": {1e11: {2: 1.9, 4: 3.0}, 1e13: {2: 1.2, 4: 1.2}},
}
SLURM = ClusterConfig(executor="slurm", gpus_per_node=1, cpus_per_task=2, mem_gb=8.0, auto=("pack",))


def run(width: int = 96, tokens: int = 12_288, seed: int = 0, precision: str = "bf16") -> RunConfig:
    base = RunConfig()
    return resolve(
        replace(
            base,
            seed=seed,
            model=ModelConfig(width=width, layers=2, head_dim=32),
            data=DataConfig(vocab_size=8192, sequence_length=1024),
            batch=BatchConfig(tokens=tokens),
            budget=BudgetConfig(tokens=1000 * tokens),
            precision=PrecisionConfig(name=precision),
            runtime=replace(base.runtime, device="cuda"),
        )
    )


def test_gains_between_what_was_measured() -> None:
    table = GAINS["mps"]
    assert gain(1e11, 4, table) == gain(0.6e11, 4, table) == 3.0
    assert gain(1e13, 4, table) == gain(1.9e13, 4, table) == 1.2
    assert gain(0.4e11, 4, table) == gain(2.1e13, 4, table) == 0.0, "nobody measured anything near"
    assert gain(1e12, 4, table) == pytest.approx(2.1), "halfway on a logarithmic scale"
    assert gain(1e11, 3, table) == 0.0, "nobody measured three"


def test_points_share_where_it_pays_with_as_few_as_do_nearly_as_well() -> None:
    small, large = run(), run(width=1024, tokens=1024 * 512)
    assert step_flops(small) == 12_288 * flops_per_token(small.model, 8192, 1024)
    assert 0.9e11 < step_flops(small) < 1.1e11 and step_flops(large) > 1e13
    found = choose(small, 80.0, gains={"mps": GAINS["mps"]})
    assert (
        found is not None and (found.pack, found.pack_gpus) == (4, "mps") and found.gain == pytest.approx(3.0, rel=0.02)
    )
    assert choose(small, 80.0, gains={"slices": {1e11: {2: 1.5, 4: 1.52}}}) == Packing(2, "slices", 1.5)
    alike = {"slices": {1e11: {2: 1.5}}, "mps": {1e11: {2: 1.54}}}
    assert choose(small, 80.0, gains=alike) == Packing(2, "slices", 1.5), "a service that a site may lack is not needed"
    assert choose(small, 80.0, gains={"slices": {1e11: {2: 1.19}}}) is None, "not worth it"
    assert choose(large, 80.0, gains={"slices": GAINS["slices"]}) is None
    assert choose(run(precision="fp32"), 80.0, gains=GAINS) is None, "the figures are of bf16"
    assert choose(small, 80.0, gains={}) is None
    halved = replace(small, parallel=replace(small.parallel, micro_batch_sequences=6))
    assert step_flops(halved) == step_flops(small) / 2


def test_what_is_known_so_far() -> None:
    found = choose(run(), 80.0)
    assert (
        found is not None
        and (found.pack, found.pack_gpus) == (4, "mps")
        and found.gain == pytest.approx(1.56, rel=0.01)
    )
    middle, larger, huge = run(tokens=5 * 12_288), run(tokens=14 * 12_288), run(width=1024, tokens=1024 * 512)
    found = choose(middle, 80.0)
    assert found is not None and (found.pack, found.pack_gpus) == (4, "mps") and 1.2 < found.gain < 1.4
    assert choose(larger, 80.0) is None, "it gains too little"
    assert gain(step_flops(huge), 4, packing.GAINS["mps"]) == 0.0 and choose(huge, 80.0) is None, "not measured"


def test_each_has_room_for_a_step_that_is_not_cut() -> None:
    config = run(width=512, tokens=1024 * 64)
    needed = need(config, Axes())
    each = (needed.fixed + 64 * needed.sequence) / 0.9
    for count in (2, 4):
        gb = count * (each + 2**30) / 1e9
        assert fits(config, gb * 1.01, count) and not fits(config, gb * 0.99, count)
    only_two = 2.5 * (each + 2**30) / 1e9
    pays = {"slices": {1e9: {2: 1.5, 4: 2.5}, 1e15: {2: 1.5, 4: 2.5}}}
    assert choose(config, only_two, gains=pays) == Packing(2, "slices", 1.5)
    assert choose(config, only_two / 2, gains=pays) is None


def test_a_job_that_could_never_start_is_not_chosen() -> None:
    found = choose(run(), 80.0, lambda count: count < 4, GAINS)
    assert found is not None and (found.pack, found.pack_gpus) == (2, "mps")
    assert choose(run(), 80.0, lambda count: False, GAINS) is None


def points(runs: Sequence[RunConfig]) -> list[Point]:
    return [point(config, ()) for config in runs]


def test_the_planner_brings_points_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "GAINS", GAINS)
    made = points([run(seed=seed) for seed in range(6)] + [run(width=1024, tokens=1024 * 512)])
    alone, shared = sorted(sizing.job_specs(StudyFolder(tmp_path), made, SLURM, Site()), key=lambda one: one.shape.pack)
    assert (alone.shape.pack, alone.shape.pack_gpus, len(alone.keys), alone.shared) == (1, "own", 1, "")
    assert (shared.shape.pack, shared.shape.pack_gpus, len(shared.keys)) == (3, "mps", 6), "two jobs of three"
    assert (shared.shape.gpus, shared.shape.cores, shared.shape.job_mem_gb) == (1, 6, 24.0)
    said = dry_run.asked([shared])
    assert "2 jobs for 6 points of 1 GPU, 6 cores" in said and "3 points share each GPU (mps)" in said
    assert "each point is planned to hold" in said
    (turns,) = sizing.job_specs(StudyFolder(tmp_path), made[:6], replace(SLURM, points_per_job=6), Site())
    assert (turns.shape.pack, turns.shape.points, turns.shape.jobs(6)) == (4, 6, 1)
    (few,) = sizing.job_specs(StudyFolder(tmp_path), made[:6], replace(SLURM, points_per_job=3), Site())
    assert (few.shape.pack, few.shape.points) == (2, 3), "no more than a job has"
    node = Site((Nodes("gpu", True, 4, 5, 512.0, 8, frozenset(), None, None),), True)
    (narrow,) = sizing.job_specs(StudyFolder(tmp_path), made[:6], SLURM, node)
    assert narrow.shape.pack == 2, "a node has five cores"


def test_its_time_is_that_of_whole_jobs_of_similar_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "GAINS", GAINS)
    long = BudgetConfig(tokens=20_000_000_000)
    made = points([run(seed=seed) if seed % 2 else replace(run(seed=seed), budget=long) for seed in range(8)])
    sized = sizing.job_specs(StudyFolder(tmp_path), made, replace(SLURM, auto=("time", "pack")), Site())
    assert [(len(one.keys), one.shape.pack) for one in sized] == [(4, 4), (4, 4)]
    assert all(a.shape.time_minutes > b.shape.time_minutes for a, b in pairwise(sized)), "long ones go together"
    assert set(sized[0].keys) == {one.key for one in made[::2]}


def test_all_means_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "GAINS", GAINS)
    made = points([run(seed=seed) for seed in range(4)])
    (sized,) = sizing.job_specs(StudyFolder(tmp_path), made, replace(SLURM, auto=("all",)), Site())
    assert sized.shape.pack == 1
    (sized,) = sizing.job_specs(StudyFolder(tmp_path), made, replace(SLURM, auto=("all", "pack")), Site())
    assert sized.shape.pack == 4
    with pytest.raises(ValueError, match=r"cluster.auto=\[pack\] chooses cluster.pack, which is 2"):
        sizing.job_specs(StudyFolder(tmp_path), made, replace(SLURM, pack=2), Site())
    local = replace(made[0].config, runtime=replace(made[0].config.runtime, device="cpu"))
    assert sizing.packed(SLURM, local, Site()) == SLURM, "cores are not shared"
    assert sizing.packed(replace(SLURM, gpus_per_node=2), made[0].config, Site()).pack == 1


def test_short_points_may_share_where_their_steps_are_no_slower_together() -> None:
    assert most_side_by_side(run(), 80.0) == 4
    assert most_side_by_side(run(tokens=14 * 12_288), 80.0) == 4, "1.03 times is no loss"
    assert most_side_by_side(run(width=1024, tokens=1024 * 512), 80.0) == 1, "nobody measured that"
    assert most_side_by_side(run(precision="fp32"), 80.0) == 1
    assert most_side_by_side(run(), 80.0, gains={"mps": {1e11: {4: 0.9}}}) == 1, "steps would be slower"
    assert most_side_by_side(run(), 80.0, gains={"slices": {1e11: {4: 2.0}}}) == 1
    config = run(width=512, tokens=1024 * 64)
    needed = need(config, Axes())
    each = ((needed.fixed + 64 * needed.sequence) / 0.9 + 2**30) / 1e9
    known: packing.Gains = {"mps": {1e9: {4: 1.0}, 1e15: {4: 1.0}}}
    assert [most_side_by_side(config, part * each, known) for part in (1.5, 2.5, 4.5)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("count", "most", "lanes"),
    [(15, 4, 4), (8, 4, 4), (7, 4, 2), (4, 4, 2), (3, 4, 1), (8, 2, 2), (8, 1, 1), (1, 4, 1)],
)
def test_lanes_that_share_a_gpu_have_two_points_each_or_more(count: int, most: int, lanes: int) -> None:
    assert side_by_side(count, most) == lanes
    assert side_by_side(count, most, lambda lanes: lanes < 4) == min(lanes, 2)
