"""A member of a population goes on from another's checkpoint: all of its state comes along, its new settings hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.train.runs import read_outcome, records, values, write_config
from train import run
from train.spec.config import PrecisionConfig, RunConfig, ScheduleConfig
from train.spec.schedule import factor

DONOR, COPY = "0123456789ab", "ba9876543210"
HALF = 15


@pytest.mark.parametrize("schedule", [ScheduleConfig(), ScheduleConfig(name="wsd", decay_fraction=0.7)])
def test_a_copy_with_the_same_settings_takes_the_donors_own_steps(
    tmp_path: Path, tiny: RunConfig, schedule: ScheduleConfig
) -> None:
    """Moments rounded at random show that even the random state comes along; wsd, that a cooldown may be under way."""
    config = replace(tiny, schedule=schedule, precision=PrecisionConfig(optimizer_state="bf16"))
    at = train_half(tmp_path, config)
    train(tmp_path / COPY, branched(config, at))
    train(tmp_path / DONOR)
    later = [row for row in values(tmp_path / DONOR) if row[1] > HALF]
    assert len(later) > HALF
    assert [row for row in values(tmp_path / COPY) if row[1] > HALF] == later
    ours, theirs = read_outcome(tmp_path / COPY), read_outcome(tmp_path / DONOR)
    assert (ours["loss"], ours["step"], ours["tokens"]) == (theirs["loss"], theirs["step"], theirs["tokens"])
    assert ours["flops_own"] == pytest.approx(ours["flops"] * (1 - at / ours["tokens"]))


def test_new_settings_survive_the_loading_of_the_optimizer(tmp_path: Path, tiny: RunConfig) -> None:
    at = train_half(tmp_path, tiny)
    assert tiny.optim.lr is not None
    lr = 3 * tiny.optim.lr
    changed = replace(tiny, optim=replace(tiny.optim, lr=lr, weight_decay=0.5, beta2=0.99))
    train(tmp_path / COPY, branched(changed, at))
    steps = [r for r in records(tmp_path / COPY) if r["kind"] == "train"]
    assert steps[0]["step"] == HALF + 1
    assert changed.budget.tokens is not None
    for one in steps:
        assert one["metrics"]["lr"] == pytest.approx(lr * factor(tiny.schedule, one["tokens"], changed.budget.tokens))
    train(tmp_path / DONOR)
    first = next(r for r in records(tmp_path / DONOR) if r["kind"] == "train" and r["step"] == HALF + 1)
    assert steps[0]["metrics"]["loss"] == first["metrics"]["loss"]  # the same weights, the same batch
    assert steps[-1]["metrics"]["loss"] != records(tmp_path / DONOR)[-1]["metrics"]["loss"]


def train_half(folder: Path, config: RunConfig) -> int:
    """Train the donor to its middle; return its tokens there."""
    assert config.batch.tokens is not None
    at = HALF * config.batch.tokens
    train(folder / DONOR, config, "--until", str(at))
    return at


def train(folder: Path, config: RunConfig | None = None, *arguments: str) -> None:
    path = folder / "config.yaml" if config is None else write_config(folder, config)
    assert run.main(["--config", str(path), *arguments]) == 0


def branched(config: RunConfig, tokens: int) -> RunConfig:
    return replace(config, schedule=replace(config.schedule, parent=f"{DONOR}@{tokens}"))
