"""Learning-rate schedules: tables and properties."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.spec.config import BatchConfig, ScheduleConfig
from train.spec.micro_batch import even_parts
from train.spec.schedule import batch_sequences, batch_tokens, branch_decay_fraction, check_branch, factor
from train.state import evaluation_due

NAMES = ("cosine", "wsd", "linear", "constant")


@pytest.mark.parametrize(
    ("name", "tokens", "wanted"),
    [
        ("cosine", 50, 0.5),
        ("cosine", 100, 1.0),
        ("cosine", 550, 0.55),
        ("cosine", 1000, 0.1),
        ("cosine", 2000, 0.1),
        ("wsd", 50, 0.5),
        ("wsd", 100, 1.0),
        ("wsd", 800, 1.0),
        ("wsd", 900, 0.55),
        ("wsd", 1000, 0.1),
        ("linear", 100, 1.0),
        ("linear", 550, 0.55),
        ("linear", 1000, 0.1),
        ("constant", 50, 0.5),
        ("constant", 100, 1.0),
        ("constant", 1000, 1.0),
    ],
)
def test_table(name: str, tokens: int, wanted: float) -> None:
    schedule = ScheduleConfig(name=name, warmup_fraction=0.1, decay_fraction=0.2, final_lr_fraction=0.1)
    assert factor(schedule, tokens, 1000) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("decay", [0.05, 0.01, 1e-3, 1e-5])
def test_a_cooldown_to_nothing_ends_there_and_not_below(decay: float) -> None:
    assert factor(ScheduleConfig("wsd", 0.0, decay, 0.0), 1000, 1000) == pytest.approx(0.0, abs=1e-9)
    assert factor(ScheduleConfig("wsd", 0.0, decay, 0.0), 1000, 1000) >= 0.0


@pytest.mark.parametrize(("tokens", "wanted"), [(800, 1.0), (850, 0.55), (900, 1 - 0.9 * 0.5**0.5), (1000, 0.1)])
def test_a_cooldown_may_fall_as_one_minus_the_root(tokens: int, wanted: float) -> None:
    schedule = ScheduleConfig("wsd", 0.1, 0.2, 0.1, decay_shape="sqrt")
    assert factor(schedule, tokens, 1000) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "wanted"), [(0, 8), (24, 8), (25, 16), (49, 16), (50, 24), (75, 32), (99, 32), (100, 32), (999, 32)]
)
def test_ramp_table(tokens: int, wanted: int) -> None:
    batch = BatchConfig(tokens=32, ramp_from=8, ramp_fraction=0.1)
    assert batch_tokens(batch, 1000, tokens) == wanted


@given(sizes=st.integers(1, 20), first=st.integers(1, 50), share=st.floats(0, 1), data=st.data())
def test_a_ramp_never_shrinks_and_ends_at_the_batch(sizes: int, first: int, share: float, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, 10**13))
    batch = BatchConfig(tokens=first * sizes, ramp_from=first, ramp_fraction=share)
    a, b = sorted(data.draw(st.tuples(st.integers(0, budget), st.integers(0, budget))))
    low, high = batch_tokens(batch, budget, a), batch_tokens(batch, budget, b)
    assert first <= low <= high <= first * sizes
    assert low % first == 0
    assert batch_tokens(batch, budget, budget) == first * sizes


def test_a_branch_must_leave_room_for_its_cooldown() -> None:
    schedule = ScheduleConfig(name="wsd", warmup_fraction=0.1, decay_fraction=0.2, parent="runs/s/k")
    check_branch(schedule, 800, 1000)
    with pytest.raises(ValueError, match=r"at most 0\.1$"):
        check_branch(schedule, 900, 1000)
    check_branch(replace(schedule, decay_fraction=branch_decay_fraction(900, 1000)), 900, 1000)
    with pytest.raises(ValueError, match=r"budget\.tokens=1000"):
        check_branch(replace(schedule, name="cosine"), 1000, 1000)


@given(
    name=st.sampled_from(NAMES), warmup=st.floats(0, 1), decay=st.floats(0, 1), final=st.floats(0, 1), data=st.data()
)
def test_factor_is_a_share_and_never_rises_after_warm_up(
    name: str, warmup: float, decay: float, final: float, data: st.DataObject
) -> None:
    horizon = data.draw(st.integers(1, 10**15))
    schedule = ScheduleConfig(name, warmup, min(decay, 1 - warmup), final)
    a, b = sorted(data.draw(st.tuples(st.integers(0, horizon), st.integers(0, horizon))))
    low, high = factor(schedule, a, horizon), factor(schedule, b, horizon)
    assert 0 <= low <= 1 + 1e-12
    assert 0 <= high <= 1 + 1e-12
    if a / horizon >= warmup:
        assert high <= low + 1e-12
    elif b / horizon < warmup:
        assert high >= low


@given(budget=st.integers(1, 2000), batch=st.integers(1, 300), count=st.integers(1, 40), length=st.just(4))
def test_steps_spend_exactly_the_budget_and_evaluations_end_on_it(
    budget: int, batch: int, count: int, length: int
) -> None:
    tokens, evaluated, at = 0, 0, []
    while tokens < budget * length:
        taken = batch_sequences(BatchConfig(tokens=batch * length), budget * length, tokens, length)
        assert 1 <= taken <= batch
        tokens += taken * length
        if evaluation_due(evaluated, tokens, budget * length, count):
            at.append(tokens)
            evaluated = tokens
    assert tokens == budget * length
    assert at[-1] == tokens
    assert len(at) <= count
    steps = math.ceil(budget / batch)
    if count <= steps and batch <= budget / count:
        assert len(at) == count


@given(count=st.integers(0, 500), most=st.integers(1, 100))
def test_micro_batches_are_few_equal_and_whole(count: int, most: int) -> None:
    sizes = even_parts(count, most)
    assert sum(sizes) == count
    assert len(sizes) == math.ceil(count / most)
    assert all(0 < size <= most for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_schedule_without_a_shape_is_an_error_and_not_constant() -> None:
    with pytest.raises(NotImplementedError, match=r"schedule.name=quadratic has no branch in .*factor: add one"):
        factor(ScheduleConfig("quadratic"), 500, 1000)
