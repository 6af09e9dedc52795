"""Curves of a study's own runs become a table that the replay takes."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from study.__main__ import main
from study.records.last_sign import last_metrics
from study.records.point import point
from study.records.points import append_points
from study.search.curves import Curve, from_runs, table
from study.storage.layout import StudyFolder
from study.workers.worker import value_at
from sweeps.replay.__main__ import main as replay
from tests.study.support.made import rolled_back
from train.spec.config import BudgetConfig, OptimConfig, RunConfig
from train.spec.resolve import resolve

BUDGET = 8192


def finished(
    study: StudyFolder, lr: float, state: str = "completed", validations: int = 4, parent: str | None = None
) -> str:
    """A run that came to its end, or diverged after half of its validations."""
    asked = replace(RunConfig(), optim=OptimConfig(lr=lr), budget=BudgetConfig(tokens=BUDGET))
    made = point(resolve(replace(asked, schedule=replace(asked.schedule, parent=parent))))
    append_points(study, [made])
    run = study.run(made.key)
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).job.write_text("{}")
    run.attempt(1).outcome.write_text(json.dumps({"state": state, "seconds": 12.0}))
    marks = range(1, 1 + (validations if state == "completed" else validations // 2))
    rows = [
        {
            "kind": "validation",
            "step": k,
            "tokens": BUDGET * k // validations,
            "time": 0.0,
            "metrics": {"loss": 5 - lr - k},
        }
        for k in marks
    ]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seconds = {"total": 10.0, "train": 8.0, "validation": 1.0}
    if state != "running":
        run.outcome.write_text(json.dumps({"state": state, "tokens": BUDGET, "step": 4, "seconds": seconds}))
    return made.key


def test_runs_become_a_table_that_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = StudyFolder(tmp_path / "s")
    keys = [finished(study, lr) for lr in (0.1, 0.2, 0.3)] + [finished(study, 0.4, "diverged")]
    finished(study, 0.5, "running")
    assert main(["export-curves", str(study.path), str(tmp_path)]) == 2
    assert "is a folder: name a file in it, such as" in capsys.readouterr().err
    for file, why in (
        ("c.csv", "FILE.npz c.csv: the file ends in .npz: name it c.npz"),
        ("c", "the file ends in .npz: name it c.npz"),
        ("/proc/x/c.npz", "FILE.npz /proc/x/c.npz: /proc is no folder that can be written to"),
    ):
        assert main(["export-curves", str(study.path), file]) == 2
        assert why in capsys.readouterr().err
    assert main(["export-curves", str(study.path), str(tmp_path / "curves.npz")]) == 0
    said = capsys.readouterr().out
    assert "4 runs of 8,192 tokens, 4 columns" in said and "left out: 1 not trained to the end" in said
    with np.load(tmp_path / "curves.npz") as made:
        assert list(made["keys"]) == keys
        np.testing.assert_allclose(made["val_loss"][0], [3.9, 2.9, 1.9, 0.9])
        assert np.isnan(made["val_loss"][3]).tolist() == [False, False, True, True]
        assert list(made["config_names"]) == ["optim.lr"]
        assert made["config"][:, 0].tolist() == [0.1, 0.2, 0.3, 0.4]
        assert made["epoch_cost"].tolist() == [1.0] * 4
    assert "startup=1.2" in said  # 12 s of attempt, 9 s of them training: 3 s against 2.5 s a column
    words = next(line for line in said.splitlines() if line.startswith("python -m sweeps.replay")).split()[3:]
    words = [w.replace("scheduler=all", "scheduler=asha_promotion,random") for w in words]
    assert replay([*words, "seeds=3", "budgets=2,4", "failures=0.2"]) == 0
    assert "asha_promotion" in capsys.readouterr().out


def test_what_cannot_be_compared_is_left_out_and_said() -> None:
    whole = [Curve(f"{n}", {"lr": n}, 100, {50: 2.0, 100: 1.0}, "completed") for n in range(3)]
    other = [Curve("a", {"lr": 9}, 50, {50: 1.0}, "completed"), Curve("b", {"lr": 8}, 100, {50: 1.0}, "paused")]
    made = table([*whole, *other])
    assert made.shape == (3, 2)
    assert made.left_out == {"of other budgets than 100 tokens": 1, "not trained to the end": 1}
    with pytest.raises(ValueError, match="too few to replay"):
        table([whole[0], *other])
    with pytest.raises(ValueError, match="no run of the study has begun"):
        table([])


def test_a_table_of_two_thousand_curves_takes_a_moment() -> None:
    """It took minutes: each cell looked at all curves again."""
    own = {f"optim.k{number}": number for number in range(40)}
    words = ("b", "a", None)
    curves = [
        Curve(str(k), {**own, "optim.lr": 1.0 + k, "name": words[k % 3]}, 1000, {1000: 2.0}, "completed", 10.0)
        for k in range(2000)
    ]
    began = time.process_time()
    made = table(curves).arrays
    assert time.process_time() - began < 10
    assert list(made["config_names"]) == ["name", "optim.lr"]
    assert made["config"][:3].tolist() == [[1.0, 1.0], [0.0, 2.0], [2.0, 3.0]]


def test_what_has_no_value_is_not_filled_in_from_later_ones() -> None:
    """A copy in a population goes on from another one's weights: it has no value before that."""
    whole = [Curve(f"{n}", {"lr": n}, 100, {25: 4.0, 50: 3.0, 75: 2.0, 100: 1.0}, "completed") for n in range(3)]
    copy = Curve("c", {"lr": 9}, 100, {75: 0.9, 100: 0.8}, "completed", seconds=5.0, begun=50)
    made = table([*whole, copy])
    np.testing.assert_allclose(made.arrays["val_loss"][3], [math.nan, math.nan, 0.9, 0.8])
    assert made.branches == 1 and made.arrays["begun"].tolist() == [0, 0, 0, 50]
    timed = table([*(replace(one, seconds=10.0) for one in whole), copy])
    assert timed.arrays["epoch_cost"].tolist() == [1.0] * 4  # half of the tokens in half of the time
    late = Curve("l", {"lr": 8}, 100, {50: 3.0, 100: 1.0}, "completed")
    np.testing.assert_allclose(table([*whole, late]).arrays["val_loss"], [[3.0, 1.0]] * 4)


def test_the_command_says_that_survivors_and_copies_are_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = StudyFolder(tmp_path / "s")
    first, *_ = [finished(study, lr) for lr in (0.1, 0.2, 0.3)]
    finished(study, 0.5, "running")
    key = finished(study, 0.4, parent=f"{first}@{BUDGET // 2}")
    assert main(["export-curves", str(study.path), str(tmp_path / "c.npz")]) == 0
    said = capsys.readouterr().out
    assert (
        "left out: 1 not trained to the end" in said and "if a search stopped the others, these are survivors" in said
    )
    assert "1 go on from another run's checkpoint: no value (NaN) before it; a replay leaves them out" in said
    with np.load(tmp_path / "c.npz") as made:
        assert dict(zip(made["keys"], made["begun"], strict=True))[key] == BUDGET // 2
    assert replay([f"curves={tmp_path / 'c.npz'}", "scheduler=random", "seeds=1", "budgets=1"]) == 0


def test_where_every_run_is_a_copy_no_replay_is_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = StudyFolder(tmp_path / "s")
    parent = finished(study, 0.1, "running")
    for lr in (0.2, 0.3, 0.4):
        finished(study, lr, parent=f"{parent}@{BUDGET // 2}")
    assert main(["export-curves", str(study.path), str(tmp_path / "c.npz")]) == 0
    said = capsys.readouterr().out
    assert "all continue from other runs' weights: nothing can be replayed" in said and "sweeps.replay" not in said


def test_a_run_that_has_not_begun_has_no_curve(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path / "s")
    append_points(study, [point(resolve(replace(RunConfig(), budget=BudgetConfig(tokens=BUDGET))))])
    assert from_runs(study) == []
    assert math.isnan(Curve("k", {}, 1).seconds)


def test_the_curve_of_a_run_that_went_back_is_that_of_the_path_it_took(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path / "s")
    run = study.run(finished(study, 0.1))
    lines = rolled_back()
    run.metrics.write_text("".join(lines))
    (curve,) = from_runs(study)
    assert curve.losses == {step * 128: step / 10 for step in (2, 4, 6, 8)}
    assert value_at(run, 4 * 128) == (0.4, 4 * 128)
    unknown = {"kind": "validation", "step": 1, "tokens": 128, "time": 1.0, "metrics": {"loss": None}}
    run.metrics.write_text(json.dumps(unknown) + "\n")
    assert value_at(run, 1) == (math.inf, 128), "a loss that is not finite"
    second = max(i for i, line in enumerate(lines) if "rollback" in line)
    stood = []
    for end in (second, second + 1, second + 2):
        run.metrics.write_text("".join(lines[:end]))
        stood.append((last_metrics(run) or {})["step"])
    assert stood == [5, 3, 4]
