"""Runs that share a GPU: what their outcomes say of it, and how much of a GPU's time they count for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from analysis.inputs import study as inputs
from study.config.schema import ClusterConfig
from study.planning.estimate import rows, speed
from study.records.point import point
from study.records.points import append_points
from study.storage.layout import StudyFolder
from tests.train.runs import write_config
from train import run
from train.metrics import outcome
from train.runtime import gpu_share
from train.runtime.gpu_share import GPU_SECONDS, TimeShare
from train.runtime.signals import StopFlag
from train.spec.config import RunConfig
from train.spec.gpu_share import SHARED_BY, VARIABLE
from train.state import TrainState


def written(
    folder: Path, config: RunConfig, device: str, seconds: float, whole: float | None = None
) -> dict[str, object]:
    """Write the outcome of a run that trained for so long, which was `whole` seconds of a GPU; return it."""
    assert config.budget.tokens is not None
    took = {"train": seconds, "validation": 0.0, "checkpoint": 0.0, "total": seconds}
    took |= {} if whole is None else {GPU_SECONDS: whole}
    reached = TrainState(step=30, tokens=config.budget.tokens, validation_loss=2.0, train_loss=2.0, seconds=took)
    folder.mkdir(parents=True, exist_ok=True)
    outcome.write(
        folder, config, reached, "completed", health={}, bytes_per_token=4.0, device=torch.device(device), world_size=1
    )
    found: dict[str, object] = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    return found


def test_four_runs_of_400_s_that_shared_a_gpu_count_as_one_of_100_s(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny, runtime=replace(tiny.runtime, device="cuda"))
    made = point(config, ())
    for name, part, seconds, whole, share in (
        ("alone", None, 100.0, None, None),
        ("shared", "0.25", 400.0, None, 0.25),
        ("others ended", "0.25", 160.0, 100.0, 0.625),  # 80 s beside three, 80 s alone
        ("alone on a shared one", "0.25", 100.0, 100.0, None),
    ):
        monkeypatch.delenv(VARIABLE, raising=False)
        if part is not None:
            monkeypatch.setenv(VARIABLE, part)
        study = StudyFolder(tmp_path / name)
        append_points(study, [made])
        said = written(study.run(made.key).path, config, "cuda", seconds, whole)
        assert said.get("gpu_share") == share
        (row,) = rows([made], {})
        rate = speed(study, config, ClusterConfig(gpus_per_node=1))
        assert rate.seconds(row) == pytest.approx(100.0), "of a GPU's time"
        table = inputs.from_runs(study.path)
        assert float(table["flops_per_second"].iloc[0]) == pytest.approx(row.flops / 100.0)
    assert "gpu_share" not in written(tmp_path / "cpu", tiny, "cpu", 1.0), "cores are a run's own"


def test_time_counts_for_the_part_of_the_gpu_that_a_run_had_while_it_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_share, "LOOK_SECONDS", 0.0)
    said, seconds = tmp_path / "0", {"train": 0.0}
    part = TimeShare({VARIABLE: "0.25", SHARED_BY: str(said)})
    part.add(seconds, 4.0)
    assert seconds == {"train": 4.0, GPU_SECONDS: 1.0}, "nobody has said anything: as for the memory"
    for count, whole in (("4\n", 2.0), ("2\n", 4.0), ("1\n", 8.0), ("0\n", 12.0), ("", 13.0)):
        said.write_text(count)
        part.add(seconds, 4.0)
        assert seconds[GPU_SECONDS] == whole
    assert seconds["train"] == 24.0
    TimeShare({}).add(seconds, 4.0)
    assert seconds == {"train": 28.0, GPU_SECONDS: 17.0}, "resumed with a GPU of its own"
    alone = {"train": 5.0}
    TimeShare({}).add(alone, 4.0)
    assert alone == {"train": 9.0}
    part.add(alone, 4.0)
    assert alone == {"train": 13.0, GPU_SECONDS: 10.0}, "resumed beside others"


def test_who_shares_a_gpu_is_looked_up_once_a_second(tmp_path: Path) -> None:
    said = tmp_path / "0"
    said.write_text("4")
    part = TimeShare({SHARED_BY: str(said)})
    assert part.now() == 0.25
    said.write_text("1")
    assert part.now() == 0.25


def test_the_trainer_counts_the_time_of_each_step_for_its_part(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, steps, add = tmp_path / "0", list[float](), TimeShare.add

    def others_end_after_fourteen(self: TimeShare, seconds: dict[str, float], trained: float) -> None:
        steps.append(trained)
        said.write_text("4" if len(steps) < 15 else "1")
        add(self, seconds, trained)

    monkeypatch.setattr(gpu_share, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(TimeShare, "add", others_end_after_fourteen)
    monkeypatch.setattr("train.trainer.TimeShare", lambda _: TimeShare({SHARED_BY: str(said)}))
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    assert run.main(["--config", str(write_config(tmp_path / "run", tiny))]) == 0
    found = json.loads((tmp_path / "run" / "outcome.json").read_text())["seconds"]
    assert found[GPU_SECONDS] == pytest.approx(sum(steps[:14]) / 4 + sum(steps[14:]), abs=0.002)
