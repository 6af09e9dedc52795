"""Parts of a step's time on a device that waits for memory alone, on a CPU, in a pipeline: by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.spec.step_time.test_step_time_experts import SHAPE
from tests.train.spec.step_time.test_step_time_kernels import DEVICE, PLAIN, attention, both, config
from train.spec.accounting.step import of_rank
from train.spec.communication.cluster import Rate, read_profile
from train.spec.communication.data_parallel import ddp_buckets
from train.spec.communication.messages import ALL_REDUCE, Message
from train.spec.config import (
    BatchConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.counts import params
from train.spec.mesh import Axes
from train.spec.step_time import host, overlap, recompute, step_time
from train.spec.step_time.attention import Attention
from train.spec.step_time.block import block_time, shape_of
from train.spec.step_time.copies import copied
from train.spec.step_time.device import device_of
from train.spec.step_time.ends import HeadShape, head_time
from train.spec.step_time.experts import expert_passes, expert_products, expert_shape
from train.spec.step_time.host import OfBlock
from train.spec.step_time.products import product
from train.spec.step_time.recompute import SHARE, modes
from train.spec.step_time.timeline import Pipeline
from train.spec.step_time.update import update_time

MANY = read_profile(Path(__file__).parents[4] / "conf" / "cluster" / "measured" / "h200_x8_400g.yaml")
BYTES = replace(DEVICE, rates=(("bf16", 1e30), ("fp32", 1e30)), products=(), memory=1.0)
"""Products take no time: seconds are bytes."""


def test_the_heads_three_products_read_and_write_inputs_weights_and_logits() -> None:
    """Of each of two chunks of 2,048: three times 1,048,576 of inputs and 67,108,864 of logits; 4,194,304 weights in
    two bytes twice, in four once."""
    head = HeadShape(tokens=4096, chunks=2, rows=16384, width=256, cut=1, size=2, format="bf16", casts=False)
    each = 3 * (1_048_576 + 67_108_864) + (2 + 2 + 4) * 4_194_304
    assert head_time(head, BYTES)[0]["head"] == pytest.approx(2 * each)
    uneven = head_time(replace(head, tokens=4095), BYTES)[0]["head"]
    assert uneven == pytest.approx(2 * each), "a chunk is 2,048 of 4,095 as well"


@pytest.mark.parametrize(
    ("model", "moved"),
    [
        # Of a matrix of s x l in two bytes: x x' 4 l s + 2 s², its square 6 s², their product 2 s² + 4 l s, and sums
        # of 10 l s + 10 s²: 18 l s + 20 s². Four of 256², three of 256 x 704.
        ({}, 4 * 38 * 256**2 + 3 * (18 * 256 * 704 + 20 * 256**2)),
        # Keys and values of half the width.
        (
            {"kv_heads": 2},
            2 * 38 * 256**2 + 2 * (18 * 128 * 256 + 20 * 128**2) + 3 * (18 * 256 * 704 + 20 * 256**2),
        ),
        # A router of 8 x 256, three matrices of 128 x 256 in each of eight experts and in that of all tokens.
        (
            {"mlp_width": 128, "experts": 8, "experts_per_token": 2, "shared_experts": 1},
            4 * 38 * 256**2 + (18 * 8 * 256 + 20 * 8**2) + 3 * 9 * (18 * 128 * 256 + 20 * 128**2),
        ),
    ],
)
def test_an_iteration_of_muon_moves_each_matrix_and_its_product_with_itself(
    model: dict[str, Any], moved: float
) -> None:
    made = config()
    made = replace(made, model=replace(made.model, **model))
    one, two = (
        update_time(replace(made, optim=OptimConfig(name="muon", muon_iterations=count)), Axes(), 0, BYTES)
        for count in (1, 2)
    )
    assert two - one == pytest.approx(made.model.layers * moved)


def test_muons_update_moves_what_its_operations_do() -> None:
    """Of other weights 32 bytes: gradient twice, weight twice, both moments twice. Of hidden matrices 16 of the first
    two, the momentum twice, and 40: 64. Each moment in bf16 takes 66 more, on its way through fp32 and back."""
    made = config()
    total, hidden = params(made.model, 8192).total, 2 * (4 * 256**2 + 3 * 256 * 704)
    iteration = 2 * (4 * 38 * 256**2 + 3 * (18 * 256 * 704 + 20 * 256**2))
    for state, others, own in (("fp32", 32, 64), ("bf16", 32 + 2 * 66, 64 + 66)):
        precision = PrecisionConfig(name="bf16", optimizer_state=state)
        muon = replace(made, optim=OptimConfig(name="muon", muon_iterations=1), precision=precision)
        moved = (others * (total - hidden) + own * hidden) * 0.9 / 0.955
        assert update_time(muon, Axes(), 0, BYTES) == pytest.approx(moved + iteration)


def test_attention_reads_queries_keys_values_and_writes_results() -> None:
    """3 sequences of 100 queries that see 200 keys, 4 heads of 16 channels, 2 groups, in two bytes: forward queries and
    results, keys and values; backward twice as many, and an fp32 sum that is cleared, added to and read."""
    found = Attention(3, 4, 2, 16, 100, 200, 200, 2, "bf16")
    wide, narrow = 3 * 100 * 4 * 16, 3 * 200 * 2 * 16
    assert found.seconds(BYTES, "forward") == pytest.approx(2 * (2 * wide + 2 * narrow))
    assert found.seconds(BYTES, "backward") == pytest.approx(2 * (4 * wide + 4 * narrow) + 12 * wide)


def test_routing_of_a_block_is_what_its_experts_move() -> None:
    made = RunConfig(
        ModelConfig(width=256, layers=2, head_dim=64, mlp_width=512, experts=8, experts_per_token=2),
        DataConfig(vocab_size=8192, sequence_length=512),
        precision=PrecisionConfig(name="bf16"),
    )
    shape = shape_of(made, Axes(), 2, window=None, sharded=True, narrow=False)
    assert shape.experts is not None
    time, device = block_time(shape, replace(DEVICE, memory=1e6)), 1e6
    for phase, found in (("forward", time.forward), ("backward", time.backward)):
        assert found["routing"] == pytest.approx(expert_passes(shape.experts, phase) / device)


def test_rows_of_other_ranks_are_put_in_order_both_ways() -> None:
    """As much as one rank with half of the experts would move, 4 reads and writes of a row forward and 8 backward."""
    half, sent = replace(SHAPE, here=4), replace(SHAPE, here=4, sent=True)
    rows = 2 * 1024
    assert expert_passes(sent, "forward") - expert_passes(half, "forward") == rows * (2 * 4 * 256 + 288)
    assert expert_passes(sent, "backward") - expert_passes(half, "backward") == rows * 2 * 8 * 256


def test_a_cpu_rank_makes_scores_at_its_own_rate() -> None:
    """589,824 scores of 64 channels; products reach in a step what they reach alone."""
    device = device_of(replace(PLAIN, device="cpu"))
    assert device.rate("bf16") == 1e12
    assert both(attention(), replace(device, memory=1e30)) == pytest.approx(589_824 * (14 * 64 + 930) / 1e12)


@pytest.mark.parametrize(("length", "alike"), [(1024, True), (4096, True), (1023, False), (4097, False)])
def test_attention_up_to_twice_as_long_is_as_the_measured_one(length: int, alike: bool) -> None:
    rate = Rate("2 x 8 x 2048 x 64, causal, forward and backward", "bf16", 1e10)
    plain = replace(DEVICE, memory=1e30)
    device = replace(device_of(replace(PLAIN, compute=replace(PLAIN.compute, attention=(rate,)))), memory=1e30)
    asked = attention(queries=length, keys=length, window=length)
    assert (both(asked, device) > 2 * both(asked, plain)) == alike


@pytest.mark.parametrize(
    ("experts", "ep", "precision", "found"),
    [
        (0, 1, "bf16", OfBlock(50, 14, 0, 0)),
        (8, 1, "bf16", OfBlock(110, 44, 0, 0)),
        (8, 2, "bf16", OfBlock(134, 60, 1, 1)),
        (8, 1, "fp32", OfBlock(158, 60, 6, 2)),
        (8, 2, "fp8", OfBlock(158, 68, 7, 3)),
    ],
)
def test_kernels_and_waits_of_a_block(experts: int, ep: int, precision: str, found: OfBlock) -> None:
    made = RunConfig(ModelConfig(experts=experts), precision=PrecisionConfig(name=precision))
    assert host.of_block(made, Axes(dp_shard=ep, ep=ep)) == found
    assert host.kernels(3, 2, 1.5, found) == 70 + 2 * (3 * found.kernels + 1.5 * found.again)
    assert host.waits(3, 2, 1.5, found) == pytest.approx(
        16.4e-3 / 270 * 2 * (3 * found.waits + 1.5 * found.waits_again)
    )


def test_sums_of_magnitudes_are_not_copied() -> None:
    found = Message(ALL_REDUCE, "fsdp", 2, 1000, 3, "largest magnitudes", "forward")
    assert copied([found], config()) == 0.0


def test_experts_with_unequal_rows_take_as_long_as_the_fullest() -> None:
    """2,050 rows of 8 experts: 257 of one."""
    uneven, full = (replace(SHAPE, tokens=tokens) for tokens in (1025, 1028))
    for phase in ("forward", "backward"):
        assert expert_products(uneven, DEVICE, phase) == expert_products(full, DEVICE, phase)


def test_experts_in_fp32_have_a_product_each() -> None:
    device = replace(DEVICE, rates=(("fp32", 1e12),))
    found = expert_products(replace(SHAPE, format="fp32", size=4), device, "forward")
    up, down = (product(device, "fp32", sides, 4, 4) for sides in ((256, 256, 1024), (256, 512, 256)))
    assert sum(found.values()) == pytest.approx(8 * (sum(up.values()) + sum(down.values())))


def test_sigmoids_that_are_balanced_are_made_to_add_up() -> None:
    for phase, each, balanced in (("forward", 12, 24), ("backward", 24, 20)):
        more = expert_passes(replace(SHAPE, sigmoid=True), phase) - expert_passes(SHAPE, phase)
        assert more == 1024 * 8 * each
        alone = replace(SHAPE, balanced=False)
        assert expert_passes(replace(alone, sigmoid=True), phase) == expert_passes(alone, phase)
        assert expert_passes(SHAPE, phase) - expert_passes(alone, phase) == 1024 * 8 * balanced


@pytest.mark.parametrize(
    ("schedule", "stages", "count", "step"),
    [
        ("1f1b", 2, 2, 9.0),  # (2 + 1) · 3
        ("gpipe", 2, 4, 15.0),
        ("zb1p", 4, 2, 13.0),  # 2 · 2 · 3, and one forward pass: half of a backward pass, 1, can wait
    ],
)
def test_a_timeline_of_even_stages_on_two_ranks(schedule: str, stages: int, count: int, step: float) -> None:
    layout = ParallelConfig(pp=2, pp_schedule=schedule)
    found = Pipeline(layout, count, 3, (1.0,) * stages, (2.0,) * stages, 0.0)
    assert found.timeline().step == pytest.approx(step)
    assert found.bubble == pytest.approx(3 * (step - 3 * count * stages / 2))


def test_a_pipelines_stages_take_what_their_ranks_compute_and_wait_for() -> None:
    for axes in (Axes(pp=2), Axes(pp=2, tp=2)):
        made = replace(
            RunConfig(
                ModelConfig(width=1024, layers=6, head_dim=64, mlp_width=2816),
                DataConfig(vocab_size=8192, sequence_length=1024),
                BatchConfig(tokens=16 * 1024),
                precision=PrecisionConfig(name="bf16"),
            ),
            parallel=ParallelConfig(pp=2, tp=axes.tp, micro_batch_sequences=2),
        )
        found = step_time(made, axes, MANY)
        pipeline = found.pipeline
        assert pipeline is not None and (pipeline.count, pipeline.passes) == (8, 1)
        beside = ("gaps", "copies of messages", "sums over micro-batches")
        computed = sum(seconds for name, seconds in found.parts.items() if name not in beside)
        whole = computed + found.exposed.get("tp", 0.0)
        assert (axes.tp > 1) == ("tp" in found.exposed)
        stages = zip(pipeline.forward, pipeline.backward, strict=True)
        assert 8 * max(there + back for there, back in stages) == pytest.approx(whole)
        assert all(0 < there < back for there, back in zip(pipeline.forward[:1], pipeline.backward[:1], strict=True))


def test_a_budget_half_way_between_two_peaks_keeps_half_of_the_blocks() -> None:
    made = RunConfig(
        ModelConfig(width=2048, layers=8, head_dim=128, mlp_width=5632),
        DataConfig(vocab_size=50304, sequence_length=2048),
        BatchConfig(tokens=32 * 2048),
        precision=PrecisionConfig(name="bf16"),
        parallel=ParallelConfig(micro_batch_sequences=16),
    )
    device = device_of(MANY)

    def peak(mode: str) -> int:
        found = of_rank(replace(made, memory=MemoryConfig(checkpointing=mode)), Axes(), "cuda", 16, 0)
        return found.peak.total + found.margin

    def kept(most: float) -> dict[str, float]:
        by_hand = replace(made, memory=MemoryConfig(checkpointing="budget", budget_gib=most / 2**30))
        found = modes(by_hand, Axes(), 0, blocks=8, sequences=16, device=device)
        of_device = replace(made, memory=MemoryConfig(checkpointing="budget"))
        sized = replace(device, size=most / SHARE)
        assert modes(of_device, Axes(), 0, blocks=8, sequences=16, device=sized) == pytest.approx(found)
        return found

    none, selective, full = map(peak, ("none", "selective", "full"))
    assert none > selective > full
    assert kept(0.5 * (none + selective)) == pytest.approx({"none": 4.0, "selective": 4.0})
    assert kept(0.25 * selective + 0.75 * full) == pytest.approx({"selective": 2.0, "full": 6.0})


def test_ddps_messages_take_of_compute_what_is_not_waited_for() -> None:
    """Of bytes that two ranks send beside compute, each takes 16 of memory; the last two messages are waited for."""
    made = RunConfig(
        ModelConfig(width=64, layers=4, head_dim=16, mlp_width=192),
        DataConfig(vocab_size=3000),
        parallel=ParallelConfig(ddp_bucket_mib=0.25),
    )
    sizes = ddp_buckets(made)
    messages = {
        Message(ALL_REDUCE, "tokens", 2, size, count, "gradients", "backward"): 1e-6 * size * count
        for size, count in Counter(sizes).items()
    }
    late, rest = sum(sizes[:2]), sum(sizes[2:])
    found = overlap.exposed(messages, made, (0.0, 100.0), 1e9)
    assert found == {"dp": pytest.approx(1e-6 * late + 16 * rest / 1e9)}


def test_rows_go_to_other_ranks_where_two_share_experts() -> None:
    made = RunConfig(ModelConfig(experts=8, experts_per_token=2))
    for ep, sent in ((1, False), (2, True)):
        shape = expert_shape(made, Axes(dp_shard=ep, ep=ep), 128, 2, "bf16")
        assert (shape.sent, shape.here) == (sent, 8 // ep)


def test_blocks_of_two_kinds_add_up() -> None:
    """A window of the whole sequence in every second block is another kind, and the same time."""
    plain = RunConfig(
        ModelConfig(width=1024, layers=6, head_dim=64, mlp_width=2816),
        DataConfig(vocab_size=8192, sequence_length=1024),
        BatchConfig(tokens=16 * 1024),
        precision=PrecisionConfig(name="bf16"),
        parallel=ParallelConfig(micro_batch_sequences=2),
    )
    mixed = replace(plain, model=replace(plain.model, window=1024, global_every=2))
    one, other = (step_time(made, Axes(), MANY) for made in (plain, mixed))
    assert other.parts == pytest.approx(one.parts)


def test_parts_of_a_step_are_those_that_take_any_time() -> None:
    found = step_time(config(), Axes(), MANY)
    assert found.parts and all(seconds > 0.0 for seconds in found.parts.values())


@pytest.mark.parametrize(
    ("selective", "most", "kept"),
    [
        (8, 10, {"none": 8.0}),
        (8, 9, {"none": 4.0, "selective": 4.0}),
        (8, 6, {"selective": 4.0, "full": 4.0}),
        (10, 7, {"none": 4.0, "full": 4.0}),  # it saves nothing
        (4, 3, {"selective": 0.0, "full": 8.0}),
    ],
)
def test_a_budget_keeps_as_much_as_fits(
    selective: int, most: float, kept: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight blocks, whose step peaks at 10 bytes with all kept, and at 4 with all made again."""
    peaks = {"none": 10, "selective": selective, "full": 4}
    monkeypatch.setattr(recompute, "_peak", lambda one, *_: peaks[one.memory.checkpointing])
    found = recompute._filled.__wrapped__(config(), Axes(), 0, blocks=8, sequences=1, most=most, device="cuda")
    assert dict(found) == kept
