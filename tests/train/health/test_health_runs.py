"""Bad steps, spikes, branches and inspections in real runs, within this process."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from analysis.inputs import recorded
from tests.train.runs import read_outcome, records, values, with_runtime, write_config
from train import branch, provenance, run
from train import trainer as training
from train.checkpoint.layout import newest, single
from train.checkpoint.load import read_all
from train.checkpoint.save import Saver
from train.metrics.recorder import Recorder
from train.parallel import grad_norm as norms
from train.parallel.parallel_model import ParallelModel
from train.runtime.signals import StopFlag
from train.spec.config import BatchConfig, HealthConfig, ProfileConfig, RunConfig, SpikesConfig
from train.spec.frozen_run import load
from train.state import TrainState
from train.trainer import Trainer

Main = Callable[..., str]
ROW_STEPS = 8  # rows of one step of the tiny run


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Main]:
    """Run the command line on a config within this process; return what it printed."""
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def call(config: Path, *arguments: str, code: int = 0) -> str:
        assert run.main(["--config", str(config), *arguments]) == code
        return "".join(capsys.readouterr())

    yield call


def train_losses(folder: Path) -> dict[int, float]:
    return {r["step"]: r["metrics"]["loss"] for r in records(folder) if r["kind"] == "train"}


def break_norm(monkeypatch: pytest.MonkeyPatch, at: set[int]) -> None:
    """Make the gradient norm of these calls (from 1) not a number, and so the clipped gradients."""
    calls = [0]
    true = norms.total_norm

    def broken(*arguments: Any) -> torch.Tensor:
        calls[0] += 1
        norm = true(*arguments)
        return norm * math.nan if calls[0] in at else norm

    monkeypatch.setattr(training, "total_norm", broken)


def test_a_bad_gradient_costs_one_step_and_is_counted(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "run", tiny)
    main(config, "--until", str(4 * 128))
    before = read_all(newest(tmp_path / "run" / "checkpoints"))  # type: ignore[arg-type]
    break_norm(monkeypatch, {1})
    assert "step 5: loss or gradient norm is not finite: skipped" in main(config, "--until", str(5 * 128))
    found = newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.progress["step"] == 5
    after = read_all(found)
    assert all(torch.equal(before[name], after[name]) for name in before)
    main(config)
    outcome = read_outcome(tmp_path / "run")
    assert outcome["state"] == "completed"
    assert outcome["health"] == {"skipped_steps": 1, "spikes": 0, "rollbacks": 0}
    (last,) = [r for r in records(tmp_path / "run") if r["kind"] == "train" and r["step"] == 30]
    assert last["metrics"]["skipped_steps"] == 1


@pytest.mark.parametrize(("policy", "last"), [("stop", 3), ("skip", 5)])
def test_bad_steps_in_a_row_are_divergence(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch, *, policy: str, last: int
) -> None:
    break_norm(monkeypatch, {3, 4, 5})
    optim = replace(tiny.optim, nonfinite=policy, nonfinite_limit=3)
    main(write_config(tmp_path / "run", replace(tiny, optim=optim)), code=run.DIVERGED)
    outcome = read_outcome(tmp_path / "run")
    assert (outcome["state"], outcome["step"]) == ("diverged", last)


def bad_rows(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    """Make the loss of steps that begin at these rows a hundred times as high."""
    true = Trainer.train_step

    def spiking(trainer: Trainer, *arguments: Any) -> tuple[Tensor, Tensor]:
        bad = first <= trainer.state.sequences <= last
        loss, norm = true(trainer, *arguments)
        return (loss * 100 if bad else loss), norm

    monkeypatch.setattr(Trainer, "train_step", spiking)


def spiky(tiny: RunConfig, policy: str) -> RunConfig:
    spikes = SpikesConfig(policy=policy, window=8, warmup_steps=4, persistence=2)
    return replace(with_runtime(tiny, checkpoint_seconds=0.0), spikes=spikes)


def test_a_spike_is_rolled_back_and_its_batches_are_skipped_also_through_a_stop(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every checkpoint is whole before the next step, so that both runs go back to the same one.
    monkeypatch.setattr("train.checkpoint.manager.Saver", partial(Saver, background=False))
    bad_rows(monkeypatch, 10 * ROW_STEPS, 11 * ROW_STEPS)  # steps 11 and 12
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    out = main(write_config(whole, spiky(tiny, "rollback")))
    assert "step 12: loss spike since step 11" in out
    assert "went back from step 12 to step 10" in out
    config = write_config(stopped, spiky(tiny, "rollback"))
    main(config, "--until", str(14 * 128))
    main(config)
    for folder in (whole, stopped):
        assert read_outcome(folder)["health"] == {"skipped_steps": 0, "spikes": 1, "rollbacks": 1}
        found = newest(folder / "checkpoints")
        assert found is not None
        assert found.progress["sequences"] == found.progress["tokens"] // 16 + 2 * ROW_STEPS
    assert train_losses(whole) == train_losses(stopped)
    went_back = provenance.rollbacks(whole)
    assert went_back == [(12, 10, 10 * 128)]
    assert provenance.rows_of(tiny, 10, went_back) == (9 * ROW_STEPS, ROW_STEPS)
    assert provenance.rows_of(tiny, 11, went_back) == (12 * ROW_STEPS, ROW_STEPS)
    assert provenance.rows_of(tiny, 11, went_back, first=True) == (10 * ROW_STEPS, ROW_STEPS)
    assert provenance.main(["--config", str(whole / "config.yaml"), "--step", "12", "--first"]) == 0


class Killed(BaseException):
    """What kills a run here: nothing of the trainer catches it."""


def spiky_twice(tiny: RunConfig) -> RunConfig:
    """Checkpoints of every fifth step only, so that it is known where each run goes back to."""
    config = with_runtime(spiky(tiny, "rollback"), checkpoint_seconds=1e9, checkpoint_keep_steps=5)
    return replace(config, spikes=replace(config.spikes, persistence=3))


def bad_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spikes at steps 14 to 16, and, of the path that this begins at 11 with the rows of 17, at 14 to 16 again."""
    for first in (13, 16 + 3):
        bad_rows(monkeypatch, first * ROW_STEPS, (first + 2) * ROW_STEPS)


def test_what_a_run_did_after_each_rollback_is_recorded_and_nothing_that_stays_for_good_is_removed(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.checkpoint.manager.Saver", partial(Saver, background=False))
    bad_twice(monkeypatch)
    out = main(write_config(tmp_path / "run", spiky_twice(tiny)))
    assert out.count("went back from step 16 to step 10") == 2
    assert read_outcome(tmp_path / "run")["health"] == {"skipped_steps": 0, "spikes": 2, "rollbacks": 2}
    path = tmp_path / "run" / "metrics.jsonl"
    back = recorded.read(path, "rollback")
    assert [(r["path"], r["step"], r["metrics"]["to_step"]) for r in back] == [(1, 16, 10.0), (2, 16, 10.0)]
    taken = {r["step"]: r["metrics"]["loss"] for r in recorded.read(path, "train")}
    assert list(taken) == list(range(1, 31))
    assert max(taken.values()) < 10
    every = [(r["step"], r["metrics"]["loss"]) for r in records(tmp_path / "run") if r["kind"] == "train"]
    assert sum(loss > 100 for _, loss in every) == 6, "the abandoned paths can be read, too"
    root = tmp_path / "run" / "checkpoints"
    kept = {f"step-{step:09d}" for step in (5, 10, 15, 20, 25, 30)}
    aside = {f"abandoned-{number}-step-{15:09d}" for number in (1, 2)}
    assert {folder.name for folder in root.iterdir()} == kept | aside
    found = single(root / "abandoned-1-step-000000015")
    assert found is not None
    assert found.manifest["notes"]["monitor"]["path"] == 0
    assert newest(root, before=16).manifest["notes"]["monitor"]["path"] == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("killed", ["before the record", "after the record", "on the new path", "at the second"])
def test_killed_around_a_rollback_a_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch, *, killed: str
) -> None:
    monkeypatch.setattr("train.checkpoint.manager.Saver", partial(Saver, background=False))
    bad_twice(monkeypatch)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    main(write_config(whole, spiky_twice(tiny)))
    true = {name: getattr(Recorder, name) for name in ("went_back", "train")}
    begun = [0]

    def went_back(recorder: Recorder, *arguments: Any) -> int:
        if killed == "before the record":
            raise Killed
        number: int = true["went_back"](recorder, *arguments)
        begun[0] += 1
        if killed == "after the record" or begun[0] == 2:
            raise Killed
        return number

    def train(recorder: Recorder, stamp: Any, *arguments: Any, **named: Any) -> None:
        true["train"](recorder, stamp, *arguments, **named)
        if killed == "on the new path" and begun[0] and stamp.step == 12:
            raise Killed

    config = write_config(cut, spiky_twice(tiny))
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "went_back", went_back)
        patch.setattr(Recorder, "train", train)
        with pytest.raises(Killed):
            main(config)
    main(config)
    assert values(cut) == values(whole)
    assert [r.get("path", 0) for r in records(cut)] == [r.get("path", 0) for r in records(whole)]
    assert read_outcome(cut)["health"] == read_outcome(whole)["health"]
    ends = [newest(folder / "checkpoints") for folder in (cut, whole)]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].manifest["notes"]["monitor"] == ends[1].manifest["notes"]["monitor"]
    assert ends[0].progress["sequences"] == ends[1].progress["sequences"]


def test_where_the_checkpoint_that_a_path_began_at_is_lost_another_path_begins(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.checkpoint.manager.Saver", partial(Saver, background=False))
    bad_rows(monkeypatch, 13 * ROW_STEPS, 15 * ROW_STEPS)
    config = write_config(tmp_path / "run", spiky_twice(tiny))
    main(config, "--until", str(18 * 128))
    root = tmp_path / "run" / "checkpoints"
    for step in (10, 15, 18):
        shutil.rmtree(root / f"step-{step:09d}")
    main(config)  # from step 5: the rows that spiked come again, and the run goes back again
    path = tmp_path / "run" / "metrics.jsonl"
    back = [(r["path"], r["step"], r["metrics"]["to_step"]) for r in recorded.read(path, "rollback")]
    assert back == [(1, 16, 10.0), (2, 5, 5.0), (3, 16, 10.0)]
    assert recorded.read(path, "missing") == [], "what the run went back to before is written again"
    assert [r["step"] for r in recorded.read(path, "train")] == list(range(1, 31))
    assert max(r["metrics"]["loss"] for r in recorded.read(path, "train")) < 10


def test_a_branch_meets_its_parents_spike_and_skips_it_without_a_checkpoint_of_its_own(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spike comes sooner after the branch than the detector needs steps to measure by: it has its parent's."""
    bad_rows(monkeypatch, 10 * ROW_STEPS, 11 * ROW_STEPS)  # steps 11 and 12
    parent, again, skipped = (tmp_path / name for name in ("parent", "again", "skipped"))
    config = write_config(parent, with_runtime(spiky(tiny, "log"), checkpoint_seconds=1e9, checkpoint_keep_steps=10))
    assert "step 12: loss spike since step 11" in main(config, "--until", str(14 * 128))
    before = ["--parent", str(parent), "--before-step", "11", "--same"]
    assert branch.main([*before, "--out", str(again)]) == 0
    none_of_its_own = ("spikes.policy=rollback", "runtime.checkpoint_keep_steps=0")
    assert branch.main([*before, "--out", str(skipped), "--set", *none_of_its_own]) == 0
    main(again / "config.yaml", "--until", str(14 * 128))
    spike = [row for row in values(parent) if row[0] == "spike"]
    assert [row for row in values(again) if row[0] == "spike"] == spike
    assert len(spike) == 1
    assert "went back from step 12 to step 10; its batches are skipped" in main(skipped / "config.yaml")
    assert read_outcome(skipped)["health"] == {"skipped_steps": 0, "spikes": 1, "rollbacks": 1}
    assert max(loss for step, loss in train_losses(skipped).items() if step > 12) < 10
    went_back, began = provenance.rollbacks(skipped), provenance.beginning(skipped)
    assert (went_back, began) == ([(12, 10, 10 * 128)], (10, 10 * 128, 10 * ROW_STEPS))
    assert provenance.rows_of(tiny, 11, went_back, began) == (12 * ROW_STEPS, ROW_STEPS)


@pytest.mark.parametrize(("policy", "code"), [("log", 0), ("stop", run.DIVERGED)])
def test_a_spike_is_logged_or_ends_the_run(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch, *, policy: str, code: int
) -> None:
    bad_rows(monkeypatch, 10 * ROW_STEPS, 11 * ROW_STEPS)
    main(write_config(tmp_path / "run", spiky(tiny, policy)), code=code)
    (spike,) = [r for r in records(tmp_path / "run") if r["kind"] == "spike"]
    assert (spike["step"], spike["metrics"]["spike_began"]) == (12, 11)
    assert spike["metrics"]["loss_z"] > 6
    assert read_outcome(tmp_path / "run")["step"] == (30 if code == 0 else 12)


def test_inspections_are_recorded_and_change_nothing(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    main(write_config(tmp_path / "plain", tiny))
    health = HealthConfig(statistics_steps=10, activations=True, desync_steps=5, probe_steps=15)
    looked = replace(tiny, health=health, profile=ProfileConfig(start=2, steps=2))
    main(write_config(tmp_path / "looked", looked))
    kinds = ("train", "validation")
    assert [v for v in values(tmp_path / "looked") if v[0] in kinds] == values(tmp_path / "plain")
    rows = {(r["kind"], r["step"]): r["metrics"] for r in records(tmp_path / "looked")}
    statistics = rows["statistics", 20]
    assert statistics["blocks.1.mlp.down/gradient_rms"] > 0
    assert 0 < statistics["blocks.0.attention.qkv/update_ratio"] < 1
    assert {"embedding/activation_rms", "blocks.0/activation_max", "norm/activation_rms"} <= set(
        rows["activations", 10]
    )
    assert [p.name for p in (tmp_path / "looked" / "profile").iterdir()] == ["step-000000003-rank-0.json.gz"]
    assert {"seconds_forward", "seconds_backward", "seconds_optimizer", "seconds_data"} <= set(rows["train", 10])


def test_arithmetic_that_does_not_repeat_ends_the_run(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, calls = ParallelModel.forward_backward, [0]

    def flaky(*arguments: Any) -> torch.Tensor:
        calls[0] += 1
        loss = true(*arguments)
        return loss * (1 + 1e-15 * calls[0])

    monkeypatch.setattr(ParallelModel, "forward_backward", flaky)
    config = replace(tiny, health=HealthConfig(probe_steps=7))
    out = main(write_config(tmp_path / "run", config), code=run.FAILED)
    assert "step 7 computed twice gave different bits (rank 0: loss)" in out


def test_a_branch_repeats_the_parents_steps_or_cools_it_down(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    parent, same, cooled = (tmp_path / name for name in ("parent", "same", "cooled"))
    trunk = replace(tiny, schedule=replace(tiny.schedule, name="wsd", decay_fraction=0.5))
    config = write_config(parent, trunk)
    main(config, "--until", str(10 * 128))
    assert branch.main(["--parent", str(parent), "--out", str(same), "--same"]) == 0
    assert branch.main(["--parent", str(parent), "--out", str(cooled), "--tokens", str(8 * 128)]) == 0
    main(config)
    main(same / "config.yaml")
    assert "branches from" in main(cooled / "config.yaml")
    assert train_losses(same) == {step: loss for step, loss in train_losses(parent).items() if step > 10}
    rates = {r["step"]: r["metrics"]["lr"] for r in records(cooled) if r["kind"] == "train"}
    assert list(rates) == list(range(11, 19))
    assert rates[11] == pytest.approx(2e-3 * 7 / 8)
    assert rates[18] == pytest.approx(0.0, abs=1e-12)
    assert read_outcome(cooled)["tokens"] == 18 * 128
    began = provenance.beginning(cooled)
    assert (began, provenance.beginning(parent)) == ((10, 10 * 128, 10 * ROW_STEPS), (0, 0, 0))
    # With a batch of its own the branch reads on from its parent's rows, in other portions.
    larger = replace(load(cooled / "config.yaml"), batch=BatchConfig(tokens=2 * 128))
    assert provenance.rows_of(larger, 12, [], began) == (12 * ROW_STEPS, 2 * ROW_STEPS)
    with pytest.raises(ValueError, match="steps 11 to 14, those before are its parent's"):
        provenance.rows_of(larger, 10, [], began)
    wider = replace(trunk, model=replace(tiny.model, width=24), schedule=replace(trunk.schedule, parent=str(parent)))
    assert "model.width" in main(write_config(tmp_path / "wider", wider), code=run.REFUSED)


def test_moments_rounded_at_random_resume_bitwise(tmp_path: Path, tiny: RunConfig, main: Main) -> None:
    rounded = replace(tiny, precision=replace(tiny.precision, optimizer_state="bf16"))
    whole, stopped = write_config(tmp_path / "whole", rounded), write_config(tmp_path / "stopped", rounded)
    main(whole)
    main(stopped, "--until", "1024")
    main(stopped)
    assert values(tmp_path / "stopped") == values(tmp_path / "whole")
    state = read_all(newest(tmp_path / "whole" / "checkpoints"))  # type: ignore[arg-type]
    assert state["optimizer.output.weight.exp_avg"].dtype is torch.bfloat16


def test_the_documents_of_a_step_are_named(tmp_path: Path, tiny: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "run", tiny)
    assert provenance.main(["--config", str(config), "--step", "3", "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert "step 3: rows 16 to 23" in out
    assert out.count(" tokens\n") >= 2
    assert provenance.main(["--config", str(config), "--step", "31"]) == 2
    assert "steps 1 to 30" in capsys.readouterr().err


def test_the_rows_of_a_branch_that_did_not_note_where_it_left_are_not_made_up(tmp_path: Path) -> None:
    progress = {"step": 12, "tokens": 12 * 128, "sequences": 12 * ROW_STEPS, "inherited": 10 * 128}
    saver = Saver(tmp_path / "checkpoints")
    saver.save(12, {"w": torch.zeros(2)}, {"progress": progress, "identity": {}})
    saver.wait()
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    assert TrainState(**found.progress).inherited_steps == 0  # such a run goes on all the same
    with pytest.raises(ValueError, match="branched off at 1280 tokens"):
        provenance.beginning(tmp_path)


def test_random_numbers_go_on_where_they_stood_after_a_stop_and_after_a_rollback(
    tmp_path: Path, tiny: RunConfig, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What draws within a step, as dropout would, draws the same: weights are a function of the config."""
    monkeypatch.setattr("train.checkpoint.manager.Saver", partial(Saver, background=False))
    bad_rows(monkeypatch, 13 * ROW_STEPS, 15 * ROW_STEPS)
    true, drawn = Trainer.train_step, dict[int, list[float]]()

    def drawing(trainer: Trainer, *arguments: Any) -> tuple[Tensor, Tensor]:
        drawn.setdefault(trainer.state.step + 1, []).append(torch.rand(()).item())
        return true(trainer, *arguments)

    monkeypatch.setattr(Trainer, "train_step", drawing)
    main(write_config(tmp_path / "whole", spiky_twice(tiny)))
    assert [len(drawn[step]) for step in (10, 11, 16, 17)] == [1, 2, 2, 1]
    assert all(len(set(each)) == 1 for each in drawn.values()), "a step that is taken again draws again what it drew"
    assert len({each[0] for each in drawn.values()}) == 30
    whole = dict(drawn)
    drawn.clear()
    config = write_config(tmp_path / "stopped", spiky_twice(tiny))
    main(config, "--until", str(7 * 128))
    torch.manual_seed(99)
    main(config)
    assert drawn == whole
