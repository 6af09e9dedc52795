"""Which variant of ASHA decides follows from what a start was measured to cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.history import Ended, Measured, Reported, Started, Unit
from sweeps.schedulers.asha_auto import AshaAuto
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.asha_stopping import AshaStopping
from tests.sweeps.searches import drive, noise

seeds = st.integers(0, 10_000)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, share=st.none() | st.floats(0, 0.037))
def test_cheap_starts_leave_it_at_promotion(seed: int, share: float | None) -> None:
    auto, promotion = AshaAuto(1, 27, limit=40), AshaPromotion(1, 27, limit=40)
    if share is not None:
        auto.apply(Measured(share))
    for event in drive(auto, noise(seed), 120, seed, lose=0.1, fail=0.05):
        if isinstance(event, Started):
            assert promotion.decide() == event.unit
        promotion.apply(event)
    assert not auto.stopping


@settings(max_examples=30, deadline=None)
@given(seed=seeds, share=st.floats(0.0371, 2.0))
def test_dear_starts_make_it_decide_as_the_stopping_variant(seed: int, share: float) -> None:
    auto, stopping = AshaAuto(1, 27), AshaStopping(1, 27)
    auto.apply(Measured(share))
    for event in drive(auto, noise(seed), 120, seed, lose=0.1, fail=0.05):
        if isinstance(event, Started):
            assert stopping.decide() == event.unit
        stopping.apply(event)
    assert auto.stopping


def test_a_later_measurement_turns_it_and_nothing_recorded_is_lost() -> None:
    auto = AshaAuto(1, 9, limit=4)
    for trial in range(4):
        unit = auto.decide()
        assert unit is not None and (unit.trial, unit.until) == (trial, 1)
        for event in (Started(unit), Reported(trial, 1, 1.0 + trial), Ended(trial, "reached")):
            auto.apply(event)
        if trial == 0:  # the best so far: where starts are dear it goes straight on
            assert auto.decide() == Unit(1, 1)
            auto.apply(Measured(0.5))
            assert auto.decide() == Unit(0, 3)
            auto.apply(Measured(0.01))
        if trial == 2:
            assert auto.decide() == Unit(0, 3)  # one of three, by promotion
            auto.apply(Measured(0.5))
            auto.going.clear()
    assert [len(rung.entries) for rung in auto.rungs] == [4, 0, 0]
    assert auto.decide() == Unit(0, 3)


def test_what_was_stopped_is_promoted_once_there_are_no_new_trials() -> None:
    auto = AshaAuto(1, 9, limit=3)
    auto.apply(Measured(0.5))
    for value in (1.0, 2.0, 3.0):
        unit = next(auto._straight_on(), None) or auto.decide()
        while unit is not None and unit.until > 1:
            for event in (Started(unit), Reported(unit.trial, unit.until, 1.0), Ended(unit.trial, "reached")):
                auto.apply(event)
            unit = auto.decide()
        assert unit is not None
        for event in (Started(unit), Reported(unit.trial, 1, value), Ended(unit.trial, "reached")):
            auto.apply(event)
    assert auto.decide() is None
    assert [len(rung.entries) for rung in auto.rungs] == [3, 1, 1]


@pytest.mark.parametrize("share", [0.036, 0.038])
def test_the_break_even_is_what_recorded_curves_gave(share: float) -> None:
    auto = AshaAuto(1, 27)
    auto.apply(Measured(share))
    assert auto.stopping == (share > 0.037)
