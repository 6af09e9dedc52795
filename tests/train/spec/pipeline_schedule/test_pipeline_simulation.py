"""The simulated timeline against closed forms, a lower bound and pictures that can be drawn by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import SCHEDULES, micro_batches, rank_of, stages_per_rank
from train.spec.pipeline_schedule.closed_forms import closed_step, least_step, plain_idle_share
from train.spec.pipeline_schedule.orders import Kind, Pass
from train.spec.pipeline_schedule.simulation import Timeline, Times, even_times, simulate, waiting

seconds = st.floats(0.1, 10)


@st.composite
def layouts(draw: st.DrawFn) -> ParallelConfig:
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    return ParallelConfig(pp=draw(st.integers(2, 6)), pp_schedule=schedule, pp_stages=draw(st.integers(1, 3)))


@st.composite
def uneven(draw: st.DrawFn, stages: int) -> Times:
    each = st.lists(seconds, min_size=stages, max_size=stages).map(tuple)
    return Times(draw(each), draw(each), draw(each), message=draw(st.floats(0, 5)))


def ends(timeline: Timeline) -> dict[Pass, float]:
    return {timed.one: timed.end for rank in timeline.ranks for timed in rank}


@given(layouts(), st.integers(1, 20), seconds, seconds, st.floats(0, 1))
def test_the_simulated_step_is_that_of_the_closed_form(
    layout: ParallelConfig, wanted: int, forward: float, backward: float, share: float
) -> None:
    count = micro_batches(layout, wanted)
    if layout.pp_schedule == "zbv":
        count, backward, share = count + 2 * layout.pp - 2, 2 * forward, 0.5
    elif layout.pp_schedule != "gpipe":
        count = micro_batches(layout, max(wanted, layout.pp))
    weight = share * backward
    found = simulate(layout, count, even_times(layout, forward, backward, weight))
    known = closed_step(layout, count, forward, backward, weight)
    assert known is not None
    assert found.step == pytest.approx(known, rel=1e-9)
    assert found.idle_share == pytest.approx(1 - count * (forward + backward) / known, abs=1e-9)
    if layout.pp_schedule in ("gpipe", "1f1b"):
        assert found.idle == pytest.approx([plain_idle_share(layout.pp, count)] * layout.pp)


@given(st.data(), layouts(), st.integers(1, 12))
def test_no_simulated_step_beats_the_lower_bound(data: st.DataObject, layout: ParallelConfig, wanted: int) -> None:
    count = micro_batches(layout, wanted)
    times = data.draw(uneven(layout.pp * stages_per_rank(layout)))
    assert simulate(layout, count, times).step >= least_step(layout, count, times) * (1 - 1e-9)


@given(st.data(), layouts(), st.integers(1, 12))
def test_passes_wait_for_what_they_need_and_no_rank_does_two_at_once(
    data: st.DataObject, layout: ParallelConfig, wanted: int
) -> None:
    count = micro_batches(layout, wanted)
    times = data.draw(uneven(layout.pp * stages_per_rank(layout)))
    found = simulate(layout, count, times)
    end, last = ends(found), layout.pp * stages_per_rank(layout) - 1
    back = Kind.INPUT if SCHEDULES[layout.pp_schedule].splits else Kind.BACKWARD
    for rank in found.ranks:
        for before, timed in zip((None, *rank), rank, strict=False):
            one, needs = timed.one, []
            if before is not None:
                assert timed.start >= before.end
            if one.kind is Kind.FORWARD:
                needs = [replace(one, stage=one.stage - 1)] if one.stage else []
            elif one.kind is Kind.WEIGHT:
                assert timed.start >= end[replace(one, kind=Kind.INPUT)]
            else:
                needs = [replace(one, stage=one.stage + 1, kind=back)] if one.stage < last else []
                assert timed.start >= end[replace(one, kind=Kind.FORWARD)]
            for need in needs:
                crosses = rank_of(layout, need.stage) != timed.rank
                assert timed.start >= end[need] + crosses * times.message


def test_two_ranks_and_two_micro_batches_as_drawn_by_hand() -> None:
    layout = ParallelConfig(pp=2, pp_schedule="gpipe")
    found = simulate(layout, 2, Times((1.0, 2.0), (1.0, 1.0), (1.0, 1.0), message=0.5))
    #        0F0 0-1, 0F1 1-2; 1F0 1.5-3.5, 1F1 3.5-5.5, 1B0 5.5-7.5, 1B1 7.5-9.5; 0B0 8-10, 0B1 10-12
    assert [[(str(t.one), t.start, t.end) for t in rank] for rank in found.ranks] == [
        [("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 8, 10), ("0B1", 10, 12)],
        [("1F0", 1.5, 3.5), ("1F1", 3.5, 5.5), ("1B0", 5.5, 7.5), ("1B1", 7.5, 9.5)],
    ]
    assert found.idle == pytest.approx([0.5, 1 / 3])


def test_a_rank_that_is_behind_takes_time_to_receive_what_was_sent_before() -> None:
    layout = ParallelConfig(pp=2, pp_schedule="gpipe")
    slow = Times((1.0, 2.0), (1.0, 1.0), (1.0, 1.0), message=0.5, between=0.125)
    found = simulate(layout, 3, replace(slow, receive=0.75))
    #        rank 1 is free at 3.5, and 0F1 ended at 2.125; rank 0 waits for 1B0, but is at 0B0 when 1B1 ends at 13.5
    assert [(str(t.one), t.start) for t in found.ranks[1]] == [
        ("1F0", 1.5), ("1F1", 3.5 + 0.875), ("1F2", 6.375 + 0.875),
        ("1B0", 9.375), ("1B1", 11.5), ("1B2", 13.625),
    ]  # fmt: skip
    assert [t.start for t in found.ranks[0]] == [0, 1.125, 2.25, 11.375 + 0.5, 13.875 + 0.875, 16.75 + 0.875]


def test_1f1b_waits_for_messages_where_it_turns_and_gpipe_hides_them() -> None:
    gpipe, turning = (ParallelConfig(pp=2, pp_schedule=name) for name in ("gpipe", "1f1b"))
    quick, slow = (even_times(gpipe, 1, 2, message=message) for message in (0.0, 0.25))
    assert simulate(gpipe, 8, slow).step - simulate(gpipe, 8, quick).step == pytest.approx(2 * 0.25)
    assert simulate(turning, 8, slow).step - simulate(turning, 8, quick).step > 8 * 0.25


def test_more_stages_and_split_backward_passes_leave_less_idle() -> None:
    def idle(schedule: str, stages: int | None = None) -> float:
        layout = ParallelConfig(pp=4, pp_schedule=schedule, pp_stages=stages)
        return simulate(layout, 16, even_times(layout, 1, 2)).idle_share

    assert idle("1f1b") == pytest.approx(3 / 19)
    assert idle("interleaved", 2) == pytest.approx(3 / (2 * 16 + 3))
    assert idle("interleaved", 4) == pytest.approx(3 / (4 * 16 + 3))
    assert idle("zb1p", 1) == pytest.approx(3 / (3 * 16 + 3))
    assert idle("zbv") == pytest.approx(1.5 / (3 * 16 + 1.5))


def test_what_waits_at_most_is_of_the_rank_that_keeps_most() -> None:
    assert waiting(ParallelConfig(pp=4, pp_schedule="gpipe"), 16) == 16
    assert waiting(ParallelConfig(pp=4), 16) == 4
    assert waiting(ParallelConfig(pp=4, pp_schedule="interleaved", pp_stages=2), 16) == 5.5
    # zb1p puts gradients of weights off on the later ranks: what they need is kept until then.
    assert waiting(ParallelConfig(pp=4, pp_schedule="zb1p", pp_stages=1), 16) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"forward": 0.0, "backward": 2.0}, "forward=0 is not allowed"),
        ({"forward": 1.0, "backward": 2.0, "weight": 3.0}, "weight=3 is not allowed: from 0 to backward=2"),
        ({"forward": 1.0, "backward": 2.0, "message": -1.0}, "message=-1 is not allowed"),
        ({"forward": 1.0, "backward": float("nan")}, "backward=nan is not allowed"),
    ],
)
def test_times_that_cannot_be_are_refused(given: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        even_times(ParallelConfig(pp=2), **given)
