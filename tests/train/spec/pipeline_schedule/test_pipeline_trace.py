"""Traces of a pipeline: what is read from them is what was simulated and written as one."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import SCHEDULES
from train.spec.pipeline_schedule.observed import Observed, RankStep, observe
from train.spec.pipeline_schedule.orders import Pass
from train.spec.pipeline_schedule.simulation import Times, simulate
from train.spec.pipeline_schedule.trace import mark, read

LAYOUTS = {name: ParallelConfig(pp=2, pp_schedule=name, pp_stages=2) for name in SCHEDULES}


def times(layout: ParallelConfig, receive: float = 0.0) -> Times:
    stages = 2 if layout.pp_schedule in ("gpipe", "1f1b") else 4
    forward = tuple(1.0 + 0.5 * stage for stage in range(stages))
    return Times(forward, forward[::-1], forward[::-1], message=0.25, between=0.125, receive=receive)


def traces(
    layout: ParallelConfig, speeds: Sequence[float] = (1.0, 1.0, 1.0), receive: float = 0.0
) -> list[dict[str, Any]]:
    """Return each rank's trace of simulated steps, 100 ms apart, by clocks that count from different times.

    speeds: how many times as fast as the first each step is.
    """
    found = []
    for rank, timed in enumerate(simulate(layout, 4, times(layout, receive)).ranks):
        base = 5_000_000 * rank
        events: list[dict[str, Any]] = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 9e9}]
        for step, speed in enumerate(speeds):
            for one in timed:
                name = mark(one.one.stage, one.one.kind, one.one.micro_batch)
                start = (one.start / speed + 100 * step) * 1e3 - base / 1e3
                span = {"ts": start, "dur": (one.end - one.start) / speed * 1e3}
                events.append({"ph": "X", "cat": "user_annotation", "name": name, **span})
        found.append({"baseTimeNanoseconds": base, "traceEvents": events[::-1]})
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_trace_gives_back_the_steps_and_times_that_made_it(name: str) -> None:
    layout = LAYOUTS[name]
    wanted, found = simulate(layout, 4, times(layout)), read(traces(layout), layout)
    usual = found.observed.usual(layout)
    assert found.idle_share == pytest.approx(wanted.idle_share)
    assert found.step_ms == pytest.approx(wanted.step)
    assert [[one.one for one in rank] for rank in found.held_out[0].ranks] == [
        [one.one for one in rank] for rank in wanted.ranks
    ]
    assert usual.forward == pytest.approx(times(layout).forward)
    assert usual.backward_input == pytest.approx(times(layout).backward_input)
    assert usual.backward_weight == pytest.approx(times(layout).backward_weight)
    assert usual.message == pytest.approx(0.25)
    assert usual.between == pytest.approx(0.125)


@pytest.mark.parametrize("name", LAYOUTS)
def test_receiving_what_was_sent_before_takes_time_of_its_own(name: str) -> None:
    layout = LAYOUTS[name]
    wanted = simulate(layout, 4, times(layout, receive=0.5))
    assert wanted.step > simulate(layout, 4, times(layout)).step, "it is on the way of the longest chain of passes"
    found = read(traces(layout, receive=0.5), layout)
    usual = found.observed.usual(layout)
    assert usual.receive == pytest.approx(0.5)
    assert (usual.between, usual.message) == pytest.approx((0.125, 0.25))
    drawn = simulate(layout, 4, found.observed.drawn(random.Random(0)))
    for step in (simulate(layout, 4, usual), drawn):
        assert step.step == pytest.approx(wanted.step)
        assert step.idle_share == pytest.approx(found.idle_share)


def test_what_a_rank_has_never_received_late_takes_it_no_longer_than_other_passes() -> None:
    layout = LAYOUTS["gpipe"]
    alone = simulate(layout, 1, times(layout, receive=0.5))  # one micro-batch: no message is there before its rank
    usual = observe([alone], layout).usual(layout)
    assert (usual.message, usual.between, usual.receive) == pytest.approx((0.25, 0.125, 0.0))


def test_times_are_of_other_steps_than_those_held_out() -> None:
    layout = LAYOUTS["1f1b"]
    found, even = read(traces(layout, speeds=(1.0, 2.0, 1.0)), layout), read(traces(layout), layout)
    assert len(found.held_out) == 1 and found.step_ms == pytest.approx(even.step_ms / 2)
    assert found.observed.usual(layout).forward == pytest.approx(even.observed.usual(layout).forward)
    assert simulate(layout, 4, found.observed.usual(layout)).step == pytest.approx(even.step_ms)
    alone = read(traces(layout, speeds=(1.0,)), layout)
    assert alone.step_ms == pytest.approx(even.step_ms)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_drawn_step_has_all_times_of_a_rank_from_one_step(name: str) -> None:
    layout = LAYOUTS[name]
    observed = read(traces(layout, speeds=(1.0, 1.0, 2.0)), layout).observed  # the first and the third step
    draw, found = random.Random(3), set()
    for _ in range(100):
        step = simulate(layout, 4, observed.drawn(draw))
        ratios = [{round(times(layout).of(t.one) / (t.end - t.start), 6) for t in rank} for rank in step.ranks]
        assert all(len(ratio) == 1 for ratio in ratios)
        found.add(tuple(speed for ratio in ratios for speed in ratio))
    assert found == set(itertools.product((1.0, 2.0), repeat=layout.pp)), "each rank's step is drawn by itself"


def test_ranks_that_are_slow_for_a_step_leave_a_pipeline_more_idle_than_their_median() -> None:
    layout = LAYOUTS["gpipe"]
    every = simulate(layout, 8, times(layout)).ranks
    steps = tuple(tuple(RankStep({t.one: took for t in rank}) for took in (1.0, 2.0, 3.0)) for rank in every)
    observed, draw = Observed(steps), random.Random(0)
    even = simulate(layout, 8, observed.usual(layout)).idle_share
    varied = [simulate(layout, 8, observed.drawn(draw)).idle_share for _ in range(200)]
    assert even == pytest.approx(1 / 9)
    assert min(varied) == pytest.approx(even), "both as slow"
    assert statistics.median(varied) > 1.5 * even


def on_a_gpu(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace whose passes a GPU runs: as two kernels each, launched long before by another thread."""
    events: list[dict[str, Any]] = []
    for count, event in enumerate(one for one in trace["traceEvents"] if one["name"] != "aten::mm"):
        at, half = 1e-3 * (event["ts"] - 1e9), 0.4 * event["dur"]
        events.append({**event, "ts": at, "dur": 1e-3})
        last = event["ts"] + event["dur"] - half
        for place, (start, name) in enumerate(((event["ts"], "gemm"), (last, "gemm"), (last + 9.0, "ncclDevKernel"))):
            same = {"ph": "X", "args": {"correlation": 3 * count + place}}
            events.append({**same, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5e-4, "dur": 1e-4})
            events.append({**same, "cat": "kernel", "name": name, "ts": start, "dur": half})
    return {**trace, "traceEvents": events}


def test_on_a_gpu_a_pass_is_from_its_first_kernel_to_its_last_without_those_of_messages() -> None:
    layout = LAYOUTS["1f1b"]
    slow = [on_a_gpu(trace) for trace in traces(layout)]
    assert read(slow, layout).idle_share == pytest.approx(simulate(layout, 4, times(layout)).idle_share)


def test_a_pass_without_a_kernel_is_missed() -> None:
    layout = LAYOUTS["1f1b"]
    slow = [on_a_gpu(trace) for trace in traces(layout)]
    slow[0]["traceEvents"] = [
        event for event in slow[0]["traceEvents"] if event.get("args", {}).get("correlation") not in (0, 1, 2)
    ]
    with pytest.raises(ValueError, match="do not hold the same steps of every pass"):
        read(slow, layout)


def test_a_trace_that_is_cut_off_or_of_no_pipeline_is_refused() -> None:
    layout = LAYOUTS["gpipe"]
    cut = traces(layout)
    cut[1]["traceEvents"].pop(0)
    unmarked: list[dict[str, Any]] = [{"traceEvents": []}, {"traceEvents": []}]
    for bad in (cut, unmarked, [traces(layout)[0], {}]):
        with pytest.raises(ValueError, match=r"do not hold the same steps of every pass.*profile.ranks=all"):
            read(bad, layout)


def test_a_mark_names_stage_kind_and_micro_batch() -> None:
    one = simulate(LAYOUTS["zbv"], 12, times(LAYOUTS["zbv"])).ranks[0][-1].one
    assert mark(one.stage, one.kind, one.micro_batch) == f"pipeline {Pass(one.stage, one.kind, one.micro_batch)}"
    assert mark(0, one.kind, 11) == "pipeline 0W11"
