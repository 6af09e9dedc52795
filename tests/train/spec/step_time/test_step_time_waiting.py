"""What a step waits for: messages, launches, the pipeline's other ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from train.spec.communication.data_parallel import ddp_buckets
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, SEND, Message
from train.spec.config import (
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.pipeline_schedule.simulation import Times, simulate
from train.spec.step_time import host, overlap, timeline
from train.spec.step_time.copies import copied

CONFIG = RunConfig(ModelConfig(), precision=PrecisionConfig(name="bf16"))


def message(collective: str, axis: str, of: str, phase: str, *, count: int = 1, ranks: int = 2) -> Message:
    return Message(collective, axis, ranks, 1000, count, of, phase)


GATHER = message(ALL_GATHER, "fsdp", "weights of block", "forward", count=4)
SUM = message(REDUCE_SCATTER, "fsdp", "gradients of block", "backward", count=4)


EACH = overlap.CONTENTION * 4 * 1000 / 2 / 1e6
"""What four messages of 1,000 bytes between two ranks take of compute, at 1 MB/s of memory."""


@pytest.mark.parametrize(
    ("gathers", "sums", "room", "waited"),
    [
        (4.0, 1.0, (10.0, 10.0), 0.0),
        (4.0, 1.0, (1.0, 10.0), 3.0),  # the backward pass hides no gather of the forward one
        (4.0, 6.0, (4.0, 6.0), 0.0),
        (4.0, 6.0, (0.0, 0.0), 10.0),
    ],
)
def test_messages_of_fsdp_are_hidden_as_far_as_their_pass_is_long(
    gathers: float, sums: float, room: tuple[float, float], waited: float
) -> None:
    """And each byte takes of compute what it takes, whatever the link."""
    found = overlap.exposed({GATHER: gathers, SUM: sums}, CONFIG, room, 1e6)
    assert found == {"fsdp": pytest.approx(waited + 2 * EACH)}


def test_nothing_runs_beside_the_first_gather_and_the_last_sum() -> None:
    first = message(ALL_GATHER, "fsdp", "weights of embedding", "forward", count=2)
    last = message(REDUCE_SCATTER, "fsdp", "gradients of embedding", "backward", count=1)
    found = overlap.exposed({first: 2.0, last: 3.0}, CONFIG, (100.0, 100.0), 1e6)
    assert found["fsdp"] == pytest.approx(1.0 + 3.0 + EACH / 4)


REDUCED = message(REDUCE_SCATTER, "fsdp", "gradients of block", "backward", count=4)
COPIES = message(ALL_REDUCE, "dp_replicate", "gradients of block", "backward", count=4)
"""Of four blocks, or of one block and four micro-batches."""


@pytest.mark.parametrize(
    ("reduce", "layout", "waited"),
    [
        # Each of four backward passes takes 2 s. Sums of every micro-batch take 0.5 and 0.75 s in each of them.
        ("fp32", {"zero": 1}, 3.0),  # 5 s in the last one
        ("bf16", {"zero": 1}, 3.0),
        ("fp32", {"zero": 2}, 0.5 + 3.0 - 2.0),  # copies are summed in the last one: 3 s, beside the shards' 0.5
        ("bf16", {"zero": 2}, 0.0),
        ("fp32", {"zero": 3}, 0.5 + 3.0 - 2.0),
        ("fp32", {"zero": 2, "strategy": "fsdp1"}, 0.0),  # sums everything in each
        ("fp32", {"zero": 1, "pp": 2}, 0.0),
    ],
)
def test_sums_of_gradients_once_a_step_are_hidden_by_the_last_backward_pass_alone(
    reduce: str, layout: dict[str, Any], waited: float
) -> None:
    config = replace(CONFIG, precision=PrecisionConfig(name="bf16", reduce=reduce), parallel=ParallelConfig(**layout))
    found = overlap.exposed({REDUCED: 2.0, COPIES: 3.0}, config, (0.0, 8.0), 1e30, 4)
    assert sum(found.values()) == pytest.approx(waited)
    alone = overlap.exposed({REDUCED: 2.0, COPIES: 3.0}, config, (0.0, 2.0), 1e30)
    assert sum(alone.values()) == pytest.approx(3.0), "with one micro-batch all are the same"


def test_what_every_micro_batch_sends_is_hidden_by_its_own_pass_and_the_last_has_more() -> None:
    """By hand: 1 s of sums of shards in each pass of 0.8 s, and 3 s of sums of copies in the last."""
    config = replace(CONFIG, precision=PrecisionConfig(name="bf16", reduce="fp32"))
    found = overlap.exposed({REDUCED: 4.0, COPIES: 3.0}, config, (0.0, 3.2), 1e30, 4)
    assert found == {"fsdp": pytest.approx(3 * 0.2 + 3.2 / 4), "dp": pytest.approx(3.2 * 3 / 4)}


DDP = RunConfig(
    ModelConfig(width=64, layers=4, head_dim=16, mlp_width=192),
    DataConfig(vocab_size=3000),
    parallel=ParallelConfig(ddp_bucket_mib=0.25),
)
"""Embedding and head of 768,000 bytes each, four blocks of about 213,000: messages of several sizes."""


def ddp_seconds(config: RunConfig, per_byte: float) -> dict[Message, float]:
    sizes = Counter(ddp_buckets(config))
    made = {
        Message(ALL_REDUCE, "tokens", 2, size, count, "gradients", "backward"): count for size, count in sizes.items()
    }
    return {one: per_byte * one.volume for one in made}


def test_of_ddps_messages_the_last_two_are_waited_for_where_the_backward_pass_is_long() -> None:
    """However many sizes there are: the embedding's, and that of the first block's first weights, end with the pass."""
    sizes = ddp_buckets(DDP)
    assert len(set(sizes)) > 2 and sizes[0] == 4 * 3000 * 64
    seconds = ddp_seconds(DDP, 1e-6)
    assert overlap.exposed(seconds, DDP, (0.0, 100.0), 1e30) == {"dp": pytest.approx(1e-6 * sum(sizes[:2]))}
    assert overlap.exposed(seconds, DDP, (0.0, 0.0), 1e30) == {"dp": pytest.approx(sum(seconds.values()))}
    passes = overlap.exposed(seconds, DDP, (0.0, 8.0), 1e30, 8)
    assert passes == overlap.exposed(seconds, DDP, (0.0, 1.0), 1e30), "the last micro-batch alone sends"


def test_ddps_messages_wait_for_each_other_and_for_their_gradients() -> None:
    """By hand: one message for all weights but the embedding's is complete at the end, as the embedding's own is."""
    both = replace(DDP, parallel=ParallelConfig())  # 1 MiB, then 25
    first, second = ddp_buckets(both)
    assert first > 4 * 3000 * 64, "embedding and first blocks"
    seconds = ddp_seconds(both, 1e-6)
    # The second message starts once its own weights are through, the blocks of the first still being to come.
    computed = second + first - 4 * 3000 * 64
    for backward in (0.1, 1.0, 3.0, 30.0):
        ready = backward * second / computed
        waited = max(backward, ready + 1e-6 * second) + 1e-6 * first - backward
        assert overlap.exposed(seconds, both, (0.0, backward), 1e30) == {"dp": pytest.approx(waited)}
    one = replace(DDP, parallel=ParallelConfig(ddp_bucket_mib=25))
    assert overlap.exposed(ddp_seconds(one, 1e-6), one, (0.0, 9.0), 1e30)["dp"] == pytest.approx(
        1e-6 * (first + second)
    )
    tied = replace(one, model=replace(DDP.model, tied_embeddings=True), parallel=DDP.parallel)
    assert overlap.exposed(ddp_seconds(tied, 1e-6), tied, (0.0, 99.0), 1e30)["dp"] == pytest.approx(
        1e-6 * sum(ddp_buckets(tied)[:2])
    )


def test_messages_within_layers_are_waited_for_unless_products_are_cut() -> None:
    inputs = message(ALL_GATHER, "tp", "inputs of layers", "forward", count=4, ranks=4)
    head = message(ALL_GATHER, "tp", "input of the head", "forward", ranks=4)
    keys = message(ALL_GATHER, "cp", "keys and values", "forward")
    norm = message(ALL_REDUCE, "world", "gradient norm", "update")
    sent = message(SEND, "pp", "residual stream", "forward")
    seconds = {inputs: 8.0, head: 1.0, keys: 2.0, norm: 0.5, sent: 7.0}
    assert overlap.exposed(seconds, CONFIG, (99.0, 99.0), 1e6) == {"tp": 9.0, "cp": 2.0, "world": 0.5}
    cut = RunConfig(parallel=ParallelConfig(tp=4, async_tp=True))
    assert overlap.exposed(seconds, cut, (99.0, 99.0), 1e6)["tp"] == 8.0 / 4 + 1.0


def test_copies_around_messages_by_hand() -> None:
    # gathered: 2 x 4,000 laid out, of the shard of 2,000 bytes its fp32 numbers read and itself written
    assert copied([GATHER], CONFIG) == 8000 + 2000 * 3
    assert copied([SUM], CONFIG) == 4000 * 6 / 4  # 1,000 numbers in fp32, read in bf16
    inputs = message(ALL_GATHER, "tp", "inputs of layers", "forward", count=4)
    assert copied([inputs], CONFIG) == 8000
    assert copied([inputs], RunConfig(parallel=ParallelConfig(tp=2, async_tp=True))) == 0
    assert copied([message(ALL_REDUCE, "tp", "gradients of norms", "update")], CONFIG) == 0


def test_a_graph_waits_for_no_launch_and_enough_work_hides_them() -> None:
    assert host.kernels(4, 1, 0.0) == 270
    assert host.kernels(4, 2, 1.0) == 70 + 2 * (200 + 14)
    assert host.waited(CONFIG, 1, 270, 1e-3) == 0.0
    single = RunConfig(compile=CompileConfig(step_graph=False))
    assert host.waited(single, 1, 270, 5e-3) == pytest.approx(16.40e-3 - 5e-3)
    assert host.waited(single, 1, 270, 20e-3) == 0.0
    assert host.waited(CONFIG, 2, 270, 1e-3) == pytest.approx(15.40e-3)  # two ranks have no graph
    assert not host.graphed(RunConfig(memory=MemoryConfig(checkpointing="budget")), 1)
    each = RunConfig(compile=CompileConfig(cuda_graphs=True))
    assert (host.launches(each, 270, 4, 2), host.launches(CONFIG, 270, 4, 2)) == (86, 270)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb1p", "zbv"])
def test_a_pipelines_step_is_that_of_the_simulation(schedule: str) -> None:
    layout = ParallelConfig(pp=2, pp_schedule=schedule)
    stages = 2 if schedule in ("gpipe", "1f1b") else 4
    forward = tuple(1.0 + 0.1 * stage for stage in range(stages))
    backward = tuple(2.0 * time for time in forward)
    half = tuple(time / 2 for time in backward)
    busy = timeline.run(layout, 8, forward, backward, 0.05)
    found = simulate(layout, 8, Times(forward, half, half, 0.05))
    assert busy.step == found.step
    assert max(busy.ranks) == pytest.approx((1.0 - min(found.idle)) * found.step)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb1p", "zbv"])
def test_long_steps_by_their_closed_form_are_near_the_simulation(schedule: str) -> None:
    layout = ParallelConfig(pp=4, pp_schedule=schedule)
    stages = 4 if schedule in ("gpipe", "1f1b") else 8
    forward, backward = (1.0,) * stages, (2.0,) * stages
    count = 64
    assert 2 * count * stages > timeline.SIMULATED
    exact = simulate(layout, count, Times(forward, forward, forward)).step
    assert timeline.run(layout, count, forward, backward).step == pytest.approx(exact, rel=1e-9)
    last = (*forward[:-1], 1.2)  # the busiest rank stands for all: an upper bound, near by
    uneven = simulate(layout, count, Times(last, forward, forward)).step
    assert uneven <= timeline.run(layout, count, last, backward).step * (1 + 1e-9) <= 1.02 * uneven


@pytest.mark.parametrize(("schedule", "stages", "turns"), [("1f1b", 1, 1), ("gpipe", 1, 1), ("interleaved", 2, 2)])
def test_a_long_step_waits_for_messages_there_and_back_while_the_pipeline_fills(
    schedule: str, stages: int, turns: int
) -> None:
    layout = ParallelConfig(pp=4, pp_schedule=schedule, pp_stages=stages)
    times = (1.0,) * 4 * stages, (2.0,) * 4 * stages
    without, waited = (timeline.run(layout, 128, *times, message).step for message in (0.0, 0.1))
    assert waited - without == pytest.approx(2 * 0.1 * 3 * turns)


def test_a_long_step_of_zbv_depends_on_both_passes_together() -> None:
    layout = ParallelConfig(pp=2, pp_schedule="zbv", pp_stages=2)
    one, other = (timeline.run(layout, 128, (there,) * 4, (3.0 - there,) * 4).step for there in (1.0, 2.0))
    assert one == other == pytest.approx(128 * 6 + 1), "forward, inputs and weights each take 1 a stage"
