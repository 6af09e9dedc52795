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
from train.metrics import outcome
from train.spec.config import RunConfig
from train.spec.gpu_share import VARIABLE
from train.state import TrainState


def written(folder: Path, config: RunConfig, device: str, seconds: float) -> dict[str, object]:
    """Write the outcome of a run that trained for so long; return it."""
    assert config.budget.tokens is not None
    took = {"train": seconds, "validation": 0.0, "checkpoint": 0.0, "total": seconds}
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
    for name, part, seconds in (("alone", None, 100.0), ("shared", "0.25", 400.0)):
        monkeypatch.delenv(VARIABLE, raising=False)
        if part is not None:
            monkeypatch.setenv(VARIABLE, part)
        study = StudyFolder(tmp_path / name)
        append_points(study, [made])
        said = written(study.run(made.key).path, config, "cuda", seconds)
        assert said.get("gpu_share") == (None if part is None else 0.25)
        (row,) = rows([made], {})
        rate = speed(study, config, ClusterConfig(gpus_per_node=1))
        assert rate.seconds(row) == pytest.approx(100.0), "of a GPU's time"
        table = inputs.from_runs(study.path)
        assert float(table["flops_per_second"].iloc[0]) == pytest.approx(row.flops / 100.0)
    assert "gpu_share" not in written(tmp_path / "cpu", tiny, "cpu", 1.0), "cores are a run's own"
