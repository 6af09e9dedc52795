"""The studies that are sized for GPUs: what their points are before anybody pays for them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from study.config.compose import Composed, Composer, HydraSource, conf_folder
from study.executors import job_spec_of
from study.executors.slurm.nodes import Nodes, Site
from study.planning import devices
from study.planning.designs import expand
from study.planning.estimate import GPU_FLOPS
from study.planning.sizing import job_specs
from study.records.point import point
from study.storage.layout import StudyFolder
from study.sweep.__main__ import main as sweep
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token, params
from train.spec.device_choices import NARROW, Gpu, advice, choose
from train.spec.mesh import Axes
from train.spec.micro_batch import most, need
from train.spec.resolve import resolve

GIVEN = ("cluster=slurm", "data.source=/text")
A100 = Gpu("NVIDIA A100", (8, 0))


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        master = compose("config", overrides=[], return_hydra_config=True)
        yield Composer(HydraSource(GlobalHydra.instance().config_loader(), master))


def composed(composer: Composer, study: str, *overrides: str) -> list[Composed]:
    return [composer.compose(job) for job in expand([(f"study={study}", *GIVEN, *overrides)], composer)]


def runs(found: Sequence[Composed]) -> list[RunConfig]:
    return [resolve(one.config.run()) for one in found]


def matmul(run: RunConfig) -> int:
    return params(run.model, run.data.vocab_size).matmul


def tokens(run: RunConfig) -> tuple[int, int, int]:
    """Return budget, batch and sequence length."""
    assert run.budget.tokens is not None and run.batch.tokens is not None
    return run.budget.tokens, run.batch.tokens, run.data.sequence_length


@pytest.fixture(scope="module")
def isoflop(composer: Composer) -> list[RunConfig]:
    return runs(composed(composer, "isoflop_gpu"))


def test_groups_of_six_sizes_lie_around_the_best(isoflop: list[RunConfig]) -> None:
    groups: dict[float, list[RunConfig]] = defaultdict(list)
    for run in isoflop:
        assert run.budget.flops is not None
        groups[run.budget.flops].append(run)
    assert sorted(groups) == [1e15, 3e15, 1e16, 3e16, 1e17]
    for budget, group in groups.items():
        sizes = [matmul(run) for run in group]
        assert len(set(sizes)) == 6 and all(1e6 <= size <= 3e8 for size in sizes)
        assert all(larger / smaller < 2 for smaller, larger in pairwise(sizes))
        ratios = [tokens(run)[0] / matmul(run) for run in group]
        assert min(ratios) < 7 and max(ratios) > 80, "the best, near 20 to 40, is well inside of every group"
        for run in group:
            spent = tokens(run)[0] * flops_per_token(run.model, run.data.vocab_size, run.data.sequence_length)
            assert spent == pytest.approx(budget, rel=1e-3)


def test_every_run_has_whole_batches_of_the_rule_and_thousands_of_steps(isoflop: list[RunConfig]) -> None:
    for run in isoflop:
        budget, batch, length = tokens(run)
        assert (length, batch % length, run.data.vocab_size, run.precision.name) == (1024, 0, 8192, "bf16")
        assert batch == pytest.approx(0.58 * budget**0.571, abs=length / 2 + 1), "the Step Law's, to a sequence"
        assert budget / batch > 1000, "the part of a batch that a run ends with is less than a thousandth of it"
        assert run.optim.lr is not None and 1e-3 < run.optim.lr <= 0.05
        share = batch // length
        assert most(share, need(run, Axes()), 40 << 30) == share, "one micro-batch on 40 GB"


def test_larger_budgets_reach_300m(composer: Composer) -> None:
    sizes = [matmul(run) for run in runs(composed(composer, "isoflop_gpu", "search.budgets=[3e18]"))]
    assert 2e8 < max(sizes) < 3.2e8


@pytest.mark.parametrize("study", ["isoflop_gpu", "lr_gpu"])
def test_nobody_is_told_that_a_run_could_be_faster(composer: Composer, study: str) -> None:
    found = composed(composer, study)
    pairs = [(one.config.cluster, run) for one, run in zip(found, runs(found), strict=True)]
    devices.check(pairs, here=False)
    assert devices.slow(pairs) == []
    for cluster, run in pairs:
        shape = job_spec_of(cluster)
        assert (shape.gpus_per_node, shape.tasks_per_node, run.runtime.device) == (1, 1, "cuda")
        chosen = choose(run, A100, 1)
        assert chosen.compile.blocks is (run.model.width > NARROW), "narrow blocks need no compiling in a step graph"
        assert advice(run, chosen, A100, 1) is None


def test_all_of_the_main_study_is_two_hours_on_one_gpu(isoflop: list[RunConfig]) -> None:
    flops = sum(run.budget.flops or 0.0 for run in isoflop)
    assert flops / GPU_FLOPS / 3600 == pytest.approx(1.6, abs=0.1)
    assert max(tokens(run)[0] for run in isoflop) / 4 == pytest.approx(345e6, rel=0.01), "of text, for four readings"


def test_learning_rates_are_swept_around_the_rule(composer: Composer) -> None:
    (run,) = runs(composed(composer, "lr_gpu"))
    assert 1e7 < matmul(run) < 2e7
    assert tokens(run)[0] / matmul(run) == pytest.approx(20, rel=1e-3)
    lists = compose("config", overrides=["study=lr_gpu", *GIVEN], return_hydra_config=True).hydra.sweeper.params
    assert lists["optim.lr_scale"] == "0.25,0.5,0.7,1,1.4,2,4"


def test_a_search_has_its_space_and_a_first_rung_of_many_steps(composer: Composer) -> None:
    config = composer.compose(["study=asha_gpu", *GIVEN]).config
    space = compose("config", overrides=["study=asha_gpu", *GIVEN], return_hydra_config=True).hydra.sweeper.params
    assert set(space) == {"optim.lr", "batch.tokens"}
    run = resolve(config.run())
    assert (config.search.name, config.cluster.gpus_per_node, run.precision.name) == ("asha", 1, "bf16")
    assert 1e7 < matmul(run) < 2e7
    first = tokens(run)[0] / config.search.eta**3
    largest = 131072
    assert f"{largest})" in space["batch.tokens"] and first / largest > 70


def test_dry_runs_say_points_time_and_gpu_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("Text of which nothing is prepared.\n")
    said = {}
    for study in ("isoflop_gpu", "asha_gpu"):
        assert sweep([f"study={study}", "cluster=slurm", "data.source=text", "dry_run=true"]) == 0
        said[study] = capsys.readouterr().out
    assert "30 points on slurm" in said["isoflop_gpu"] and "1.6 h of runs" in said["isoflop_gpu"]
    short = "6 jobs for 24 points, 4 in a job, one after the other, of 1 GPU, 4 cores, 24 GB, 10 min: 1 GPU-hours"
    long = "6 jobs of 1 GPU, 4 cores, 24 GB, 20 min: 2 GPU-hours"
    assert short in said["isoflop_gpu"] and long in said["isoflop_gpu"]
    assert "asha over optim.lr, batch.tokens, 48 trials, 4 workers on slurm" in said["asha_gpu"]
    assert "--gpus-per-node=1" in said["asha_gpu"]
    assert sorted(place.name for place in tmp_path.iterdir()) == ["text"], "nothing was written"


def test_short_points_of_the_study_share_gpus_that_are_fewer_than_they_are(composer: Composer, tmp_path: Path) -> None:
    """The study of fifteen points that benchmarks/study_peers.py measures, by the GPUs of the cluster."""
    words = ("search.budgets=[1e15,3e15,1e16]", "search.ratios=[10,20,40,80,160]")
    node = Nodes("gpu", True, 1, 32, 256.0, 2, frozenset(), None, None)

    def shapes(site: Nodes | None, *more: str) -> list[tuple[int | None, int, str]]:
        found = composed(composer, "isoflop_gpu", *words, *more)
        made = [point(resolve(one.config.run()), ()) for one in found]
        there = Site() if site is None else Site((site,), True)
        sized = job_specs(StudyFolder(tmp_path), made, found[0].config.cluster, there)
        assert sorted(key for one in sized for key in one.keys) == sorted(one.key for one in made)
        return [(one.shape.points_per_job, one.shape.pack, one.shape.pack_gpus) for one in sized]

    assert shapes(node) == [(8, 4, "mps")], "two jobs, four points at a time in each"
    assert shapes(replace(node, count=3)) == [(3, 1, "own")], "six GPUs, and a job for each"
    assert shapes(replace(node, cores=20)) == [(8, 2, "mps")], "two jobs of four would not run beside each other"
    assert shapes(replace(node, mem_gb=60.0)) == [(8, 1, "own")], "nor two of two by their memory"
    assert shapes(replace(node, gpus=1)) == [(8, 4, "mps")]
    assert shapes(None) == [(8, 1, "own")], "jobs of four might never start"
    assert shapes(node, "cluster.pack=1") == shapes(node, "cluster.auto=[points_per_job]") == [(8, 1, "own")]
    assert shapes(node, "precision=fp32") == [(8, 1, "own")], "it was measured in bf16"
    assert shapes(node, "runtime.device=cpu", "cluster.gpus_per_node=0")[0][1:] == (1, "own")
    apart = "search.budgets=[1e15,3e15,3e16]"  # steps of the largest have more FLOPs than were measured
    assert [pack for _, pack, _ in shapes(node, apart)] == [2, 1]
    plenty = ("search.budgets=[1e16,3e16]", "cluster.auto=[points_per_job,pack]")
    assert shapes(replace(node, count=9), *plenty) == [(None, 1, "own")], "where none shares, all stay together"
    short, longer = shapes(node, "search.budgets=[1e15,1e17]")
    assert short == (5, 2, "mps") and longer == (None, 1, "own"), "those of ten minutes have a GPU each"


def test_the_table_says_the_time_with_as_many_at_once_as_there_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "gpu*|2|32|256000|gpu:h200:2|(null)|infinite|1-infinite|idle"
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\necho '{nodes}'\n", encoding="utf-8")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("Text of which nothing is prepared.\n")
    words = ["study=isoflop_gpu", "cluster=slurm", "data.source=text", "dry_run=true", "search.budgets=[1e17]"]
    said = []
    for more in ([], ["cluster.array_parallelism=3"], ["cluster.auto=[points_per_job]", "search.budgets=[1e15]"]):
        assert sweep([*words, *more]) == 0
        said.append(" ".join(capsys.readouterr().out.split()))
    assert "67 min of runs; 17 min with 4 at once" in said[0], "two nodes of two GPUs"
    assert "67 min of runs; 22 min with 3 at once" in said[1]
    assert "40 s of runs; 40 s with 1 at once" in said[2], "in one job, one after the other"
