"""A trunk and its cooldowns come to the losses of separate runs: the steps that they share are taken once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sweeps.designs.trunk_and_branch import Part, saved, trunk_and_branch
from tests.train.runs import read_outcome, values, write_config
from train import run
from train.checkpoint import newest
from train.checkpoint.load import stored
from train.spec.config import BudgetConfig, RunConfig, ScheduleConfig

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
    assert run.main(["--config", str(write_config(tmp_path / key(8), config))]) == 1
    assert f"{key(7)}/checkpoints holds no whole checkpoint at 1024 tokens" in capfd.readouterr().err


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
