"""A run's judgement of its own steps: what follows from each, what is counted, and how it goes on from a checkpoint."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from train.health.loss_spikes import Action, Seen, Verdict
from train.health.monitor import Judged, Monitor, remembered
from train.health.nonfinite import Skipped
from train.spec.config import OptimConfig, PrecisionConfig, RunConfig, SpikesConfig

NAN = math.nan
EMPTY: dict[str, Any] = {
    "seen": {"losses": (), "norms": (), "first": None, "row": 0},
    "skipped": {"total": 0, "in_row": 0, "overflows": 0},
    "spikes": 0,
    "went_back": [],
    "path": 0,
}


def monitor(policy: str = "log", nonfinite: str = "skip", limit: int = 2, precision: str = "fp32") -> Monitor:
    return Monitor(
        RunConfig(
            optim=OptimConfig(nonfinite=nonfinite, nonfinite_limit=limit),
            precision=PrecisionConfig(name=precision),
            spikes=SpikesConfig(policy=policy, threshold=3.0, window=4, warmup_steps=2, persistence=2, limit=1),
        )
    )


def judged(found: Monitor, losses: list[float]) -> list[tuple[Action, bool]]:
    every = [found.judge(step, loss, 1.0) for step, loss in enumerate(losses, start=1)]
    assert all(isinstance(one, Judged) for one in every)
    return [(one.action, one.diverged) for one in every]


GO_ON, BACK, STOP = (Action.GO_ON, False), (Action.ROLL_BACK, False), (Action.STOP, True)


@pytest.mark.parametrize(
    ("policy", "losses", "wanted", "spikes"),
    [
        ("log", [1, 3, 9, 9, 2], [GO_ON] * 5, 1),
        ("stop", [1, 3, 9, 2, 9], [GO_ON] * 5, 0),  # high, but never twice in a row
        ("stop", [1, 3, 9, 9], [GO_ON] * 3 + [STOP], 1),
        ("rollback", [1, 3, 9, 9], [GO_ON] * 3 + [BACK], 1),
        ("rollback", [1, 3, 9, 9, 2, 99, 99], [GO_ON] * 3 + [BACK, GO_ON, GO_ON, BACK], 2),
    ],
)
def test_what_follows_from_each_step(
    policy: str, losses: list[float], wanted: list[tuple[Action, bool]], spikes: int
) -> None:
    found = monitor(policy)
    assert judged(found, losses) == wanted
    assert found.spikes == spikes
    assert found.counts() == {"skipped_steps": 0, "spikes": spikes, "rollbacks": 0}


def test_after_as_many_rollbacks_as_are_allowed_a_spike_ends_the_run() -> None:
    found = monitor("rollback")
    found.went_back.append((9, 5, 500))
    assert judged(found, [1, 3, 9, 9]) == [GO_ON] * 3 + [STOP]
    assert found.counts() == {"skipped_steps": 0, "spikes": 1, "rollbacks": 1}


@pytest.mark.parametrize(
    ("nonfinite", "limit", "losses", "over"),
    [
        ("stop", 2, [2.0, NAN], [False, True]),
        ("skip", 1, [2.0, NAN], [False, True]),
        ("skip", 2, [NAN, 2.0, NAN, NAN], [False, False, False, True]),
        ("skip", 3, [NAN, NAN, 2.0, NAN], [False] * 4),
    ],
)
def test_steps_that_are_not_finite_end_the_run_by_themselves(
    nonfinite: str, limit: int, losses: list[float], over: list[bool]
) -> None:
    found = monitor("log", nonfinite, limit)
    assert [diverged for _, diverged in judged(found, losses)] == over
    assert found.counts()["skipped_steps"] == sum(math.isnan(loss) for loss in losses)


def test_only_in_fp16_does_an_overflow_not_count_in_a_row() -> None:
    for precision, in_row in (("fp16", 0), ("bf16", 1)):
        found = monitor(precision=precision)
        found.judge(1, 2.0, 1.0)
        found.judge(2, 2.5, math.inf)
        assert (found.skipped.total, found.skipped.in_row) == (1, in_row)
        assert found.state_dict()["seen"]["losses"] == (2.0,), "no measure of later ones"
        found.judge(3, 2.5, 1.0)
        assert found.state_dict()["seen"]["losses"] == (2.0, 2.5)


def test_a_new_run_has_seen_nothing_and_an_empty_state_is_one() -> None:
    assert monitor().state_dict() == EMPTY
    assert monitor().counts() == {"skipped_steps": 0, "spikes": 0, "rollbacks": 0}
    found = monitor()
    judged(found, [1, 3, 9, 9, NAN])
    found.path, found.went_back = 3, [(1, 2, 3)]
    assert found.state_dict() != EMPTY
    found.load_state_dict({})
    assert found.state_dict() == EMPTY


def test_it_goes_on_from_its_state_as_json() -> None:
    found = monitor("rollback")
    judged(found, [1, 3, NAN, 9, 9])
    found.path, found.went_back = 2, [(9, 5, 500), (12, 5, 500)]
    state = found.state_dict()
    assert (state["spikes"], state["path"], state["went_back"]) == (1, 2, [[9, 5, 500], [12, 5, 500]])
    again = monitor("rollback")
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == {**state, "seen": Seen.of(state["seen"]).plain()}
    assert (again.skipped, again.went_back) == (found.skipped, found.went_back)
    assert again.counts() == {"skipped_steps": 1, "spikes": 1, "rollbacks": 2}
    for step, loss in enumerate([2.0, 30.0, 30.0], start=6):
        assert again.judge(step, loss, 1.0) == found.judge(step, loss, 1.0)
    older = {name: state[name] for name in ("seen", "skipped")}  # as it was kept before there were the rest
    again.load_state_dict(older)
    assert (again.spikes, again.went_back, again.path) == (0, [], 0)


def test_steps_that_are_taken_again_keep_the_measure_and_begin_to_count_anew() -> None:
    found = monitor()
    judged(found, [1, 3, NAN, 9])
    kept = remembered(found.state_dict())
    assert kept == {"seen": found.state_dict()["seen"], "skipped": {}}
    again = monitor()
    again.load_state_dict(kept)
    assert (again.skipped, again.spikes) == (Skipped(), 0)
    assert again.state_dict()["seen"] == found.state_dict()["seen"]
    assert remembered({}) == {}


class Heard:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.said: list[str] = []

    def event(self, *given: Any) -> None:
        self.events.append(given)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(("nonfinite", "follows"), [("skip", "skipped"), ("stop", "the run ends")])
def test_spikes_and_steps_that_are_not_finite_are_said(nonfinite: str, follows: str) -> None:
    heard: Any = Heard()
    found = monitor(nonfinite=nonfinite)
    found.report(heard, 7, 700, Judged(Verdict(4.06, 1.5, True, 6), Action.GO_ON, False))
    assert heard.events == [("spike", 7, 700, {"loss_z": 4.06, "grad_norm_z": 1.5, "spike_began": 6.0})]
    assert heard.said == [
        "step 7: loss spike since step 6 (loss 4.1, gradient norm 1.5 standard deviations up); docs/loss-spikes.md "
        "says what to look at"
    ]
    found.report(heard, 8, 800, found.judge(8, NAN, 1.0))
    assert heard.said[1:] == [f"step 8: loss or gradient norm is not finite: {follows}"] and len(heard.events) == 1
