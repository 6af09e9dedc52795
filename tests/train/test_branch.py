"""A trunk and its cooldowns come to the losses of separate runs: the steps that they share are taken once."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sweeps.designs.trunk_and_branch import Part, saved, trunk_and_branch
from tests.train.runs import read_outcome, records, values, write_config
from train import run
from train.branch import branch, main
from train.checkpoint.layout import Checkpoint, newest
from train.checkpoint.load import stored
from train.spec.config import BatchConfig, BudgetConfig, RunConfig, ScheduleConfig
from train.spec.frozen_run import load
from train.spec.resolve import resolve
from train.spec.schedule import batch_tokens, check_branch, factor

BUDGETS = (2048, 4096)
WARMUP = 256


def key(number: int) -> str:
    return f"{number:012x}"


def scheduled(tiny: RunConfig, part: Part, decay: float, parent: str | None) -> RunConfig:
    """The run of one part: constant for the trunk, else down to zero over its own tokens."""
    schedule = ScheduleConfig(
        name="wsd" if part.cooldown else "constant",
        warmup_fraction=WARMUP / part.end,
        decay_fraction=decay if part.cooldown else 0.2,
        final_lr_fraction=0.0,
        parent=parent,
    )
    return replace(tiny, schedule=schedule, budget=BudgetConfig(tokens=part.end))


@pytest.mark.parametrize("decay", [0.5, 0.2])
def test_branches_come_to_the_losses_of_separate_runs(tmp_path: Path, tiny: RunConfig, decay: float) -> None:
    assert tiny.batch.tokens is not None
    parts = trunk_and_branch(BUDGETS, decay, tiny.batch.tokens, WARMUP)
    for number, part in enumerate(parts):
        parent = None if part.parent is None else f"{key(part.parent)}@{part.begin}"
        own = (part.end - part.begin) / part.end
        assert (
            run.main(["--config", str(write_config(tmp_path / key(number), scheduled(tiny, part, own, parent)))]) == 0
        )
        apart = tmp_path / f"apart-{number}"
        if not part.cooldown:
            continue
        assert run.main(["--config", str(write_config(apart, scheduled(tiny, part, own, None)))]) == 0
        ours, theirs = read_outcome(tmp_path / key(number)), read_outcome(apart)
        assert ours["loss"]["validation_nats_per_token"] == pytest.approx(
            theirs["loss"]["validation_nats_per_token"], rel=1e-5
        )
        assert (ours["tokens"], ours["flops"]) == (theirs["tokens"], theirs["flops"])
        if decay == 0.5:  # all shares are powers of two: the learning rates agree to the last bit, so everything does
            later = [row for row in values(apart) if row[2] > part.begin and row[0] == "train"]
            assert later
            assert [row for row in values(tmp_path / key(number)) if row[0] == "train"] == later
            assert ours["loss"] == theirs["loss"]
    outcomes = [read_outcome(tmp_path / key(number)) for number in range(len(parts))]
    each = outcomes[0]["flops"] / outcomes[0]["tokens"]
    assert sum(outcome["flops_own"] for outcome in outcomes) == pytest.approx(each * saved(parts)[0])


def test_a_parent_that_is_not_there_yet_is_named(
    tmp_path: Path, tiny: RunConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    config = scheduled(tiny, Part(1024, 2048, 0, True), 0.5, f"{key(7)}@1024")
    assert run.main(["--config", str(write_config(tmp_path / key(8), config))]) == 2
    assert f"{key(7)}/checkpoints has no complete checkpoint at 1024 tokens" in capfd.readouterr().err


ROW = 128


def grown(tiny: RunConfig) -> RunConfig:
    """A trunk of 10,000 batches whose learning rate and batch grow over shares of its budget."""
    schedule = ScheduleConfig(name="wsd", warmup_fraction=0.3, decay_fraction=0.2)
    batch = BatchConfig(tokens=64 * ROW, ramp_from=8 * ROW, ramp_fraction=0.5)
    config = replace(tiny, schedule=schedule, batch=batch, budget=BudgetConfig(tokens=10_000 * 64 * ROW))
    return resolve(config)


def taken_at(batches: int) -> Checkpoint:
    return Checkpoint(Path("runs/p/checkpoints/step-000000001"), {"progress": {"tokens": batches * 64 * ROW}})


@pytest.mark.parametrize("at", [3500, 4500, 6000, 7999])
def test_a_cooldown_goes_on_with_its_parents_batch_and_at_the_peak(tiny: RunConfig, at: int) -> None:
    parent, unit = grown(tiny), 64 * ROW
    child = branch(parent, taken_at(at), 2500 * unit)
    end = child.budget.tokens
    assert end == (at + 2500) * unit
    for tokens in range(at * unit, end, 100 * unit + 7):
        assert batch_tokens(child.batch, end, tokens) == batch_tokens(parent.batch, 10_000 * unit, tokens)
    assert child.schedule.warmup_fraction * end == pytest.approx(3000 * unit)
    assert factor(child.schedule, at * unit, end) == pytest.approx(1.0)
    assert factor(child.schedule, end, end) == pytest.approx(0.0, abs=1e-12)
    for tokens in range(unit, 3000 * unit, 500 * unit):
        assert factor(child.schedule, tokens, end) == pytest.approx(factor(parent.schedule, tokens, 10_000 * unit))


def test_a_cooldown_that_cannot_keep_its_parents_plan_is_refused_in_words(tiny: RunConfig) -> None:
    parent = grown(tiny)
    with pytest.raises(ValueError, match=r"grows until 40,960,000 tokens.*give at least 12288000"):
        branch(parent, taken_at(3500), 1000 * 64 * ROW)
    with pytest.raises(ValueError, match="was taken during warmup"):
        branch(replace(parent, batch=BatchConfig(tokens=64 * ROW)), taken_at(2000), 500 * 64 * ROW)
    plain = branch(replace(parent, batch=BatchConfig(tokens=64 * ROW)), taken_at(6000), 1000 * 64 * ROW)
    assert plain.batch == BatchConfig(tokens=64 * ROW)


@pytest.mark.parametrize("tokens", [1, 1000, 1001, 1007, 1008])
def test_a_cooldown_of_any_length_begins_where_its_checkpoint_was_taken(tiny: RunConfig, tokens: int) -> None:
    length, at = tiny.data.sequence_length, 30 * 128
    parent = replace(tiny, schedule=ScheduleConfig(name="constant"), budget=BudgetConfig(tokens=at))
    found = Checkpoint(Path("runs/p/checkpoints/step-000000030"), {"progress": {"tokens": at}})
    child = branch(parent, found, tokens)
    assert child.budget.tokens == at + max(1, round(tokens / length)) * length
    check_branch(child.schedule, at, child.budget.tokens)
    assert factor(child.schedule, at, child.budget.tokens) == pytest.approx(1.0)


def test_a_branch_does_not_replace_another_runs_config(
    tmp_path: Path, tiny: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "parent", replace(tiny, schedule=ScheduleConfig(name="constant")))
    assert run.main(["--config", str(config), "--until", "1024"]) == 0
    said, given = config.read_text(), ["--parent", str(config.parent), "--tokens", "1024", "--out"]
    assert main([*given, str(config.parent)]) == 2
    assert f"{config} is there already, of another run: name another folder with --out" in capsys.readouterr().err
    assert config.read_text() == said
    assert main([*given, str(tmp_path / "child")]) == main([*given, str(tmp_path / "child")]) == 0


def test_a_branch_from_where_nothing_can_be_written(
    tmp_path: Path, tiny: RunConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "parent", replace(tiny, schedule=ScheduleConfig(name="constant")))
    assert run.main(["--config", str(config), "--until", "1024"]) == 0
    given = ["--parent", str(config.parent), "--tokens", "1024", "--out"]
    assert main([*given, str(config / "child")]) == 2
    assert "Not a directory: name a folder of your own with --out\n" in capsys.readouterr().err
    assert not list(config.parent.glob("checkpoints/*/pinned"))

    def refused(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr("train.checkpoint.layout.pin", refused)
    assert main([*given, str(tmp_path / "child")]) == 0
    assert "cannot be pinned (Permission denied): if its run goes on, it may" in capsys.readouterr().err
    assert run.main(["--config", str(tmp_path / "child" / "config.yaml")]) == 0


def test_settings_of_a_branch_are_those_that_are_given(
    tmp_path: Path, tiny: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "parent", replace(tiny, schedule=ScheduleConfig(name="constant")))
    assert run.main(["--config", str(config), "--until", "1024"]) == 0
    given = ["--parent", str(config.parent), "--same", "--out", str(tmp_path / "child"), "--set"]
    for wrong, words in (
        ("seed.x=3", "--set seed.x=3: seed is no section, but a key: write it as seed=value"),
        ("data.sources=[a", "data.sources=[a: the value is not YAML: expected ',' or ']'"),
        ("seed", "--set seed: write it as section.key=value"),
        ("sead=3", "unknown key 'sead': did you mean 'seed'?"),
    ):
        assert main([*given, wrong]) == 2
        assert words in (said := capsys.readouterr().err) and said.count("\n") == 1
    assert main([*given, "seed=3", "optim.lr=1e-3"]) == 0
    child = load(tmp_path / "child" / "config.yaml")
    assert (child.seed, child.optim.lr) == (3, 1e-3)


@pytest.mark.parametrize(("precision", "begins_with"), [("fp16", 16384.0), ("fp16, other", 1024.0)])
def test_a_branch_goes_on_with_its_parents_loss_scale_where_it_has_its_format(
    tmp_path: Path, tiny: RunConfig, precision: str, begins_with: float
) -> None:
    fp16 = replace(tiny, precision=replace(tiny.precision, name="fp16", loss_scale=1024.0, loss_scale_steps=2))
    constant = replace(fp16, schedule=ScheduleConfig(name="constant", warmup_fraction=0.05))
    config = write_config(tmp_path / "parent", constant)
    assert run.main(["--config", str(config), "--until", str(8 * 128)]) == 0
    found = newest(tmp_path / "parent" / "checkpoints")
    assert found is not None
    assert found.manifest["notes"]["scaler"]["scale"] == 16384.0, "four times doubled in eight steps"
    cooled = branch(constant, found, 4 * 128)
    if precision != "fp16":
        cooled = replace(cooled, precision=replace(cooled.precision, loss_scale_steps=1000))
    assert run.main(["--config", str(write_config(tmp_path / "child", cooled))]) == 0
    first = next(r for r in records(tmp_path / "child") if r["kind"] == "train")
    assert first["metrics"]["loss_scale"] == begins_with


@pytest.mark.parametrize(("was", "now"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_a_branch_keeps_its_moments_in_its_own_format(tmp_path: Path, tiny: RunConfig, was: str, now: str) -> None:
    def done(name: str, state: str, parent: str | None, *until: str) -> Path:
        schedule = ScheduleConfig(name="constant", parent=parent)
        made = replace(tiny, schedule=schedule, precision=replace(tiny.precision, optimizer_state=state))
        assert run.main(["--config", str(write_config(tmp_path / name, made)), *until]) == 0
        return tmp_path / name

    parent = str(done("parent", was, None, "--until", "1024"))
    other, same = done("other", now, parent), done("same", was, parent)
    found = newest(other / "checkpoints")
    assert found is not None
    moments = {about[1] for name, about in stored(found).items() if "exp_avg" in name}
    assert moments == {torch.float32 if now == "fp32" else torch.bfloat16}
    # Moments in bf16 have errors of 2^-9 each, at random: their sum over a run this short is far below a per cent.
    losses = [read_outcome(folder)["loss"]["validation_nats_per_token"] for folder in (other, same)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
