"""The lowest validation loss of a run: kept over a stop, written at the end, and said where the run ended above it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.inference import findings
from tests.train.runs import finish, read_outcome, records, start, write_config
from train.data.dataset import open_training
from train.metrics.validation import PAST_LOWEST, past_lowest
from train.spec.config import BudgetConfig, EvalConfig, RunConfig
from train.state import TrainState


def reached(*losses: float) -> TrainState:
    """Return the state of a run with these validation losses, one every 100 tokens."""
    state = TrainState()
    for loss in losses:
        state.tokens += 100
        state.validated(loss)
    return state


@pytest.mark.parametrize(
    ("losses", "lowest", "at"),
    [
        ((3.0, 2.0, 1.5), 1.5, 300),
        ((3.0, 1.5, 2.0), 1.5, 200),
        ((3.0, 1.5, 1.5), 1.5, 200),
        ((math.nan, 3.0, math.inf), 3.0, 200),
        ((math.nan,), None, 0),
    ],
)
def test_the_first_of_the_lowest_counts(losses: tuple[float, ...], lowest: float | None, at: int) -> None:
    state = reached(*losses)
    assert (state.lowest_loss, state.lowest_at) == (lowest, at)
    assert state.evaluated == state.tokens == 100 * len(losses)
    again = TrainState()
    again.load_state_dict(state.state_dict())
    assert again == state or math.isnan(losses[-1])


def test_a_checkpoint_of_an_earlier_version_has_no_lowest_loss_yet() -> None:
    said = reached(2.0).state_dict()
    del said["lowest_loss"], said["lowest_at"]
    state = TrainState()
    state.load_state_dict(said)
    assert (state.validation_loss, state.lowest_loss) == (2.0, None)


@pytest.mark.parametrize(
    ("losses", "epochs", "words"),
    [
        ((3.0, 2.0), 8.0, ""),
        ((2.0, 2.01), 8.0, ""),
        ((), 1.0, ""),
        ((2.0, 2.011), None, "2.0000 nats/token, after 50 % of the tokens and ended 0.6 % above it: the run overfits"),
        ((2.0, 3.0), 0.5, "2.0000 nats/token, after 50 % of the tokens and ended 50.0 % above it: the run overfits"),
        (
            (1.3710, 1.2849, 1.2012, 1.1770, 1.2201),
            8.54,
            "1.1770 nats/token, after 80 % of the tokens and ended 3.7 % above it: the run overfits, having read its "
            "text 8.5 times",
        ),
    ],
)
def test_what_is_said_at_the_end(losses: tuple[float, ...], epochs: float | None, words: str) -> None:
    assert past_lowest(reached(*losses), epochs) == ("validation was lowest, " + words if words else "")


def test_a_run_and_the_analysis_of_its_study_call_the_same_a_rise() -> None:
    assert PAST_LOWEST == findings.PAST_LOWEST, "analysis knows nothing of the trainer: the number is in both"


def test_a_run_writes_its_lowest_loss_and_how_often_it_read_its_text(tmp_path: Path, tiny: RunConfig) -> None:
    assert tiny.batch.tokens is not None
    config = replace(tiny, budget=BudgetConfig(tokens=20 * tiny.batch.tokens), eval=EvalConfig(sequences=8, count=5))
    path = write_config(tmp_path / "run", config)
    finish(start(path))
    outcome = read_outcome(path.parent)
    losses = {one["tokens"]: one["metrics"]["loss"] for one in records(path.parent) if one["kind"] == "validation"}
    assert len(losses) == 5
    lowest = min(losses, key=losses.__getitem__)
    assert outcome["loss"]["lowest_validation_nats_per_token"] == losses[lowest]
    assert outcome["loss"]["lowest_validation_tokens"] == lowest
    rows = 20 * tiny.batch.tokens // tiny.data.sequence_length
    windows = open_training(tiny.data, tiny.runtime.data_root, tiny.seed).sources[0].rows.windows
    assert outcome["epochs"] == pytest.approx(rows / windows, abs=5e-5)
