"""Layouts of a study's points with parallel=auto: chosen for new ones, kept by those that the study has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from study.config.compose import Composed
from study.config.schema import ClusterConfig, PathsConfig
from study.planning.plan import folder_of
from study.records.points import append_points, load_points, to_point
from study.search.settings import Settings
from study.sweep.__main__ import main
from study.sweep.layouts import LaidOut, lay_out
from study.workers.layout import lay_out as lay_out_search
from tests.study.planning.parallel.questions import CPU, config
from train.spec.config import OptimConfig, ParallelConfig
from train.spec.resolve import resolve

TWO = ClusterConfig(profile=str(CPU), tasks_per_node=2)
AUTO = ParallelConfig(layout="auto", dp_replicate=1, dp_shard=None)


def composed(tmp_path: Path, lr: float, **changes: Any) -> Composed:
    made = config(**{"parallel": AUTO, "cluster": TWO, "optim": OptimConfig(lr=lr), **changes})
    return Composed(replace(made, paths=PathsConfig(runs=str(tmp_path))), (f"optim.lr={lr}", "parallel.pp=1"))


def laid_out(*points: Composed) -> LaidOut:
    return lay_out(points, [resolve(one.config.run()) for one in points], lambda line: None)


def test_points_of_the_study_keep_their_layout_and_new_ones_are_chosen(tmp_path: Path) -> None:
    first = composed(tmp_path, 1e-3)
    found = laid_out(first)
    (run,) = found.resolved
    assert run.parallel.layout == "chosen" and [line.partition(" fastest")[0] for line in found.said] == [
        f"Layout of {to_point(run, {}).key}: Predicted"
    ]
    before = replace(run, parallel=replace(run.parallel, tp=1, dp_shard=2, micro_batch_sequences=1))
    folder = folder_of(first.config)
    append_points(folder, [to_point(before, {})])
    again = laid_out(first, composed(tmp_path, 2e-3))
    assert again.resolved[0] == before and again.resolved[1].parallel == run.parallel
    assert again.said[-1] == "1 point of the study keeps the layout of before."
    assert len(again.said) == 2 and to_point(again.resolved[1], {}).key in again.said[0]


def test_a_point_that_is_not_done_keeps_its_ranks(tmp_path: Path) -> None:
    first = composed(tmp_path, 1e-3)
    (run,) = laid_out(first).resolved
    folder = folder_of(first.config)
    append_points(folder, [to_point(run, {})])
    alone = composed(tmp_path, 1e-3, cluster=replace(TWO, tasks_per_node=1))
    with pytest.raises(ValueError, match=r"on 2 ranks and keeps that, but .*tasks_per_node give it 1"):
        laid_out(alone)
    folder.run(to_point(run, {}).key).outcome.parent.mkdir()
    folder.run(to_point(run, {}).key).outcome.write_text('{"state": "completed"}')
    assert laid_out(alone).resolved == [run], "it has been trained"


def test_layouts_that_are_given_are_left_alone(tmp_path: Path) -> None:
    given = composed(tmp_path, 1e-3, parallel=ParallelConfig(), cluster=ClusterConfig())
    found = laid_out(given)
    assert (found.composed, found.said) == ((given,), ())


def test_a_search_has_one_layout_for_all_trials(tmp_path: Path) -> None:
    one = composed(tmp_path, 1e-3)
    found, said = lay_out_search(one, ("optim.lr",), None)
    assert found.config.parallel.layout == "chosen" and said.startswith("Layout of all trials: Predicted fastest: ")
    kept = {"parallel": {"tp": 2, "dp_shard": 1, "layout": "chosen"}, "model": {"width": 64}}
    begun = Settings("random", "random", 1, 1, 3, 1, 0, None, 1.0, base=kept)
    again, told = lay_out_search(one, ("optim.lr",), begun)
    assert (again.config.parallel.tp, told) == (2, "The trials keep the layout of before.")
    with pytest.raises(ValueError, match=r"parallel=auto chooses one layout .* but model.width differs between them"):
        lay_out_search(one, ("model.width",), None)
    given = composed(tmp_path, 1e-3, parallel=ParallelConfig())
    assert lay_out_search(given, ("model.width",), None) == (given, "")


def test_a_dry_run_shows_the_layout_and_asks_for_a_rank_for_each_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=1b", "budget.tokens=1e9", "precision=bf16", "data.sequence_length=1024", "batch.tokens=262144"]
    words += ["parallel=auto", "parallel.pp=1", "cluster=slurm", "dry_run=true", "cluster.gpus_per_node=8"]
    assert main([*words, "cluster.profile=h200_x8_400g", "-m", "optim.lr=1e-4,2e-4"]) == 0
    said = capsys.readouterr().out
    assert "Layout of all points: Predicted fastest: " in said
    assert "#SBATCH --ntasks-per-node=8\n" in said and "2 jobs of 8 GPUs" in said
    assert main(words) == 2
    assert "parallel=auto needs cluster.profile" in capsys.readouterr().err


def test_the_frozen_point_records_the_choice(tmp_path: Path) -> None:
    (run,) = laid_out(composed(tmp_path, 1e-3)).resolved
    folder = folder_of(composed(tmp_path, 1e-3).config)
    append_points(folder, [to_point(run, {})])
    (point,) = load_points(folder).values()
    assert point.config.parallel == run.parallel
    assert json.loads(folder.points.read_text())["config"]["parallel"]["layout"] == "chosen"
