"""Which steps count as bad or high, and what follows: tables."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.health.loss_spikes import Action, Seen, Verdict, decide, observe, z_score
from train.health.monitor import Monitor
from train.health.nonfinite import OVERFLOWS, Skipped, count, diverged, skip_flag
from train.spec.config import PrecisionConfig, RunConfig, SpikesConfig

NAN, INF = math.nan, math.inf
# Window of 4 steps, judged from the second on: mean 2, standard deviation 1 after losses 1 and 3.
CONFIG = SpikesConfig(threshold=3.0, window=4, warmup_steps=2, persistence=2)


def verdicts(losses: list[float], norms: list[float] | None = None) -> list[Verdict]:
    seen, found = Seen(), []
    for step, (loss, norm) in enumerate(zip(losses, norms or [1.0] * len(losses), strict=True), start=1):
        seen, verdict = observe(seen, step, loss, norm, CONFIG)
        found.append(verdict)
    return found


@pytest.mark.parametrize(
    ("losses", "high", "spike"),
    [
        ([1, 3, 5], [False, False, False], None),  # exactly three standard deviations
        ([1, 3, 5.1], [False, False, True], None),  # once is no spike
        ([1, 3, 6, 7], [False, False, True, True], 3),  # twice is, and it began at the first
        ([1, 3, 6, 2, 6], [False, False, True, False, True], None),  # interrupted
        ([1, 3, NAN, INF], [False, False, True, True], 3),
        ([1, 3, -9], [False, False, False], None),  # low is not high
        ([9, 1], [False, False], None),  # too early to tell
    ],
)
def test_high_steps_and_spikes(losses: list[float], high: list[bool], spike: int | None) -> None:
    found = verdicts(losses)
    assert [v.high for v in found] == high
    assert next((v.spike for v in found if v.spike is not None), None) == spike


def test_the_gradient_norm_alone_is_enough() -> None:
    found = verdicts([2.0, 2.0, 2.0, 2.0], [1.0, 3.0, 10.0, 11.0])
    assert [v.norm_z for v in found] == [0, 0, 8, 9]
    assert [v.loss_z for v in found] == [0, 0, 0, 0]
    assert found[3].spike == 3


def test_what_stays_high_becomes_the_measure_and_is_said_once() -> None:
    found = verdicts([1, 3, *[100.0] * 8])
    assert [v.spike for v in found] == [None, None, None, 3, *[None] * 6]
    assert [v.high for v in found[-4:]] == [False] * 4


def test_high_steps_do_not_widen_the_window() -> None:
    seen = Seen()
    for step, loss in enumerate([1.0, 3.0, 50.0], start=1):
        seen, _ = observe(seen, step, loss, 1.0, CONFIG)
    assert seen.losses == (1.0, 3.0)


def test_threshold_zero_never_finds_one() -> None:
    seen = Seen((1.0, 3.0), (1.0, 1.0))
    assert observe(seen, 3, 1e9, 1.0, SpikesConfig(threshold=0.0, warmup_steps=2))[1] == Verdict(0.0, 0.0, False, None)


@given(losses=st.lists(st.floats(0.1, 20) | st.just(NAN), max_size=40), cut=st.integers(0, 40))
def test_resumed_from_its_json_it_decides_the_same(losses: list[float], cut: int) -> None:
    seen, found = Seen(), []
    for step, loss in enumerate(losses):
        if step == cut:
            seen = Seen.of(json.loads(json.dumps(seen.plain())))
        seen, verdict = observe(seen, step + 1, loss, 1.0, CONFIG)
        found.append(verdict)
    assert found == verdicts(losses)
    assert len(seen.losses) <= CONFIG.window


@pytest.mark.parametrize(("value", "wanted"), [(4.0, 2.0), (2.0, 0.0), (0.0, -2.0), (NAN, INF), (INF, INF)])
def test_z_score_table(value: float, wanted: float) -> None:
    assert z_score(value, [1.0, 3.0]) == wanted


def test_a_window_without_spread_has_a_floor() -> None:
    assert z_score(2.002, [2.0, 2.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("policy", "spike", "rollbacks", "wanted"),
    [
        ("log", None, 0, Action.GO_ON),
        ("log", 7, 0, Action.GO_ON),
        ("stop", None, 0, Action.GO_ON),
        ("stop", 7, 0, Action.STOP),
        ("rollback", None, 0, Action.GO_ON),
        ("rollback", 7, 0, Action.ROLL_BACK),
        ("rollback", 7, 2, Action.ROLL_BACK),
        ("rollback", 7, 3, Action.STOP),
    ],
)
def test_policy_table(policy: str, spike: int | None, rollbacks: int, wanted: Action) -> None:
    assert decide(SpikesConfig(policy=policy, limit=3), spike, rollbacks) is wanted


@pytest.mark.parametrize(
    ("loss", "norm", "wanted"), [(1.0, 1.0, 0.0), (NAN, 1.0, 1.0), (1.0, INF, 1.0), (INF, NAN, 1.0)]
)
def test_the_flag_is_one_where_anything_is_not_finite(loss: float, norm: float, wanted: float) -> None:
    flag = skip_flag(torch.tensor(loss, dtype=torch.float64), torch.tensor(norm))
    assert (flag.item(), flag.dtype, flag.shape) == (wanted, torch.float32, torch.Size([]))


@pytest.mark.parametrize(
    ("loss", "norm", "overflows", "wanted"),
    [
        (1.0, 1.0, False, Skipped(4, 0)),
        (NAN, 1.0, False, Skipped(5, 3)),
        (1.0, INF, False, Skipped(5, 3)),
        (1.0, INF, True, Skipped(5, 0, 1)),
        (NAN, INF, True, Skipped(5, 3)),
    ],
)
def test_counts(loss: float, norm: float, overflows: bool, wanted: Skipped) -> None:
    assert count(Skipped(4, 2), loss, norm, overflows) == wanted
    if not overflows:
        assert count(Skipped(4, 2), loss, norm) == wanted


def test_overflows_that_no_loss_scale_ends_are_divergence() -> None:
    skipped, taken = Skipped(), 0
    while not diverged(skipped, "skip", limit=5):
        skipped, taken = count(skipped, 1.0, NAN, overflows_expected=True), taken + 1
        assert taken < 1000
    assert taken == OVERFLOWS + 5
    assert 2.0**40 / 2.0**OVERFLOWS == 2.0**-24, "the way of a scale from 2^40 to its least"
    assert count(skipped, 1.0, 1.0, overflows_expected=True) == Skipped(taken)


@pytest.mark.parametrize(
    ("in_row", "policy", "wanted"),
    [(0, "stop", False), (1, "stop", True), (0, "skip", False), (4, "skip", False), (5, "skip", True)],
)
def test_divergence(in_row: int, policy: str, wanted: bool) -> None:
    assert diverged(Skipped(9, in_row), policy, limit=5) is wanted


@pytest.mark.parametrize("policy", ["stop", "rollback"])
def test_overflows_that_lower_the_loss_scale_are_no_spike_and_a_loss_that_jumps_among_them_is(policy: str) -> None:
    spikes = SpikesConfig(policy=policy, window=16, warmup_steps=8)

    def monitor(precision: str) -> Monitor:
        found = Monitor(RunConfig(precision=PrecisionConfig(name=precision), spikes=spikes))
        for step in range(1, 17):
            assert found.judge(step, 3.0 + 0.01 * math.sin(step), 1.0 + 0.1 * math.cos(step)).action is Action.GO_ON
        return found

    forgiving = monitor("fp16")
    for step in range(17, 17 + 2 * spikes.persistence):
        judged = forgiving.judge(step, 3.0, INF)
        assert (judged.action, judged.diverged, judged.verdict.high) == (Action.GO_ON, False, False)
    assert (forgiving.skipped.total, forgiving.skipped.in_row, forgiving.spikes) == (6, 0, 0)
    assert len(forgiving._seen.losses) == 16, "a norm that is not known is no measure of later ones"
    for judged in [forgiving.judge(30 + n, 9.0, INF) for n in range(3)]:
        assert judged.verdict.high
    assert judged.action is (Action.STOP if policy == "stop" else Action.ROLL_BACK)
    strict = monitor("bf16")  # there no scale explains it
    assert [strict.judge(17 + n, 3.0, INF).action for n in range(3)][-1] is not Action.GO_ON


def test_once_no_scale_explains_them_overflows_count_as_high_again() -> None:
    config = RunConfig(precision=PrecisionConfig(name="fp16"), spikes=SpikesConfig(window=16, warmup_steps=8))
    found = Monitor(config)
    for step in range(16):
        found.judge(step, 3.0, 1.0)
    high = [found.judge(16 + n, 3.0, INF).verdict.high for n in range(OVERFLOWS + 2)]
    assert high == [False] * OVERFLOWS + [True] * 2
