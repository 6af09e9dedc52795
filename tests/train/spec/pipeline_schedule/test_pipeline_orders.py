"""The order of passes against torch's own schedules, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from train.spec.config import ParallelConfig
from train.spec.pipeline_layout import SCHEDULES, micro_batches, rank_of, stages_of, stages_per_rank, waiting_passes
from train.spec.pipeline_schedule.orders import Kind, Pass, in_flight, orders

CLASSES = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zb1p": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}
LAYOUTS = [
    ParallelConfig(pp=pp, pp_schedule=name, pp_stages=stages)
    for name, schedule in SCHEDULES.items()
    for pp in (2, 3, 4, 5, 8)
    for stages in ((1, 2, 3, 4) if schedule.stages == 0 else (None,))
    if pp * (stages or 1) <= 16
]
COUNTS = (*range(1, 18), 24, 32)


class Recorder:
    """A stage of its own rank that sends nothing and remembers its passes."""

    def __init__(self, number: int, stages: int) -> None:
        self.stage_index, self.num_stages = number, stages
        self.is_first, self.is_last, self.has_backward = number == 0, False, True
        self.done: list[Pass] = []

    def forward_one_chunk(self, chunk: int, *_: Any, **__: Any) -> None:
        self.done.append(Pass(self.stage_index, Kind.FORWARD, chunk))

    def backward_one_chunk(self, chunk: int, **_: Any) -> None:
        self.done.append(Pass(self.stage_index, Kind.BACKWARD, chunk))

    def get_fwd_recv_ops(self, chunk: int) -> list[Any]:
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def perform_reduce_grad(self, factor: int) -> None:
        pass


def run_by_torch(layout: ParallelConfig, rank: int, count: int) -> list[Pass]:
    """Return what torch's schedule of one stage a rank does when it steps."""
    stage = Recorder(rank, layout.pp)
    kind = schedules.ScheduleGPipe if layout.pp_schedule == "gpipe" else schedules.Schedule1F1B
    schedule = object.__new__(kind)
    vars(schedule).update(
        {"_stage": stage, "_n_microbatches": count, "_num_stages": layout.pp, "_stage_initialized": True}
        | {"_has_backward": True, "_loss_fn": None, "scale_grads": False, "_internal_losses": []}
        | {"_initialize_stage": lambda *_: None}
    )
    schedule._step_microbatches([()] * count, [{}] * count)
    return stage.done


def planned_by_torch(layout: ParallelConfig, count: int) -> list[list[Pass]]:
    """Return what torch's schedule of several stages plans for each rank, without messages."""
    stages = [
        SimpleNamespace(
            stage_index=number,
            num_stages=layout.pp * stages_per_rank(layout),
            group_size=layout.pp,
            group_rank=0,
            has_backward=True,
            submod=SimpleNamespace(),
            is_first=number == 0,
            is_last=False,
        )
        for number in stages_of(layout, 0)
    ]
    made: Any = CLASSES[layout.pp_schedule](stages, count)  # type: ignore[arg-type]
    return [
        [
            Pass(one.stage_index, Kind(one.computation_type.value), one.microbatch_index)
            for one in made.pipeline_order_with_comms[rank]
            if one.is_compute_op
        ]
        for rank in range(layout.pp)
    ]


def name(layout: ParallelConfig) -> str:
    return f"{layout.pp_schedule}-{layout.pp}-{layout.pp_stages}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
def test_each_rank_runs_its_passes_in_the_order_of_torch(layout: ParallelConfig) -> None:
    taken = [count for count in COUNTS if micro_batches(layout, count) == count]
    assert len(taken) >= 5
    for count in taken:
        if layout.pp_schedule in CLASSES:
            wanted = planned_by_torch(layout, count)
        else:
            wanted = [run_by_torch(layout, rank, count) for rank in range(layout.pp)]
        assert [list(order) for order in orders(layout, count)] == wanted, count


@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
def test_every_pass_is_run_once_by_the_rank_that_has_its_stage(layout: ParallelConfig) -> None:
    kinds = (
        {Kind.FORWARD, Kind.INPUT, Kind.WEIGHT}
        if SCHEDULES[layout.pp_schedule].splits
        else {Kind.FORWARD, Kind.BACKWARD}
    )
    count = micro_batches(layout, 6)
    found = orders(layout, count)
    stages = range(layout.pp * stages_per_rank(layout))
    every = {Pass(stage, kind, i) for stage in stages for kind in kinds for i in range(count)}
    assert sorted(map(str, every)) == sorted(str(one) for order in found for one in order)
    assert all(rank_of(layout, one.stage) == rank for rank, order in enumerate(found) for one in order)


@pytest.mark.parametrize("layout", LAYOUTS, ids=name)
def test_passes_in_flight_on_the_first_rank_are_those_of_the_closed_form(layout: ParallelConfig) -> None:
    count = layout.pp * 4
    first = in_flight(orders(layout, count)[0]) / stages_per_rank(layout)
    assert first == waiting_passes(layout, count)


def test_in_flight_counts_until_the_gradients_of_weights_are_there() -> None:
    layout = ParallelConfig(pp=2, pp_schedule="zbv")
    assert [in_flight(order) for order in orders(layout, 4)] == [4, 4]
    assert [in_flight(order) for order in orders(ParallelConfig(pp=2), 4)] == [2, 1]


@pytest.mark.parametrize(
    ("schedule", "count", "words"),
    [
        ("1f1b", 3, "micro_batches=3 .* at least as many as stages; the next number that fits is 4"),
        ("interleaved", 9, "micro_batches=9 .* rounds of equal size, at least pp=4 each; .* is 10"),
        ("gpipe", 0, "micro_batches=0 is not allowed: at least 1"),
    ],
)
def test_numbers_that_a_schedule_cannot_take_are_refused(schedule: str, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        orders(ParallelConfig(pp=4, pp_schedule=schedule), count)
