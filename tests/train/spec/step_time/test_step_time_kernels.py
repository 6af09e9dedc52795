"""Products, attention and passes of a block, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from train.spec.communication.cluster import ClusterProfile, Compute, Level, Rate
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
from train.spec.step_time import device as devices
from train.spec.step_time.attention import Attention
from train.spec.step_time.block import BlockShape, block_time, shape_of
from train.spec.step_time.device import IN_STEP, Device, device_of
from train.spec.step_time.ends import HeadShape, embedding_time, head_time
from train.spec.step_time.products import busy, product, seconds
from train.spec.step_time.update import accumulated, update_time

PLAIN = ClusterProfile(
    name="plain", source="", machine="", versions="", date="", kind="measured", levels=(Level("all", 0.0, 1e9),),
    compute=Compute((Rate("8192 x 8192 x 8192", "bf16", 1e12),), copy=1e9),
)  # fmt: skip
DEVICE = device_of(PLAIN)
MODEL = ModelConfig(width=256, layers=2, head_dim=64, mlp_width=704, qk_norm=False)


@pytest.mark.parametrize(
    ("sides", "share"),
    [
        ((8192, 8192, 8192), 2048 / (16 * 132) * 128 / 129),  # 32 x 64 tiles in 16 rounds; 128 steps and one to fill
        ((128, 8192, 128), 16 / 132 * 8 / 9),  # one tile, its sum in 16 parts of 8 steps
        ((128, 512, 128), 1 / 132 * 8 / 9),  # too short a sum to be cut
        ((192 * 11, 6400, 192 * 12), 100 / 101),  # 132 tiles of 192 x 192: one for each multiprocessor
    ],
)
def test_a_products_share_of_the_best_rate_is_its_tiles(sides: tuple[int, int, int], share: float) -> None:
    assert busy(*sides) == pytest.approx(share)


def test_a_product_takes_the_longer_of_arithmetic_and_memory() -> None:
    sides, rate = (8192, 8192, 8192), IN_STEP * 1e12
    flops = 2 * 8192**3
    # measured alone it had the best rate, whatever tiles say
    arithmetic, by_arithmetic = seconds(DEVICE, "bf16", sides, 0.0)
    assert by_arithmetic and arithmetic == pytest.approx(flops / rate)
    memory, by_arithmetic = seconds(DEVICE, "bf16", sides, 9e12)
    assert not by_arithmetic and memory == pytest.approx(9e12 / 0.9e9)
    moved = 2 * (8192 * 64 + 64 * 8192) + 4 * 8192**2
    assert product(DEVICE, "bf16", (8192, 64, 8192), 2, 4) == {"narrow matmul": pytest.approx(moved / 0.9e9)}


def test_measured_shapes_speak_for_those_near_them() -> None:
    slow = Rate("16384 x 1024 x 4096", "bf16", 0.4e12)
    profile = replace(PLAIN, compute=replace(PLAIN.compute, matmul=(*PLAIN.compute.matmul, slow)))
    device = device_of(profile)
    exact, _ = seconds(device, "bf16", (16384, 1024, 4096), 0.0)
    assert exact == pytest.approx(2 * 16384 * 1024 * 4096 / (IN_STEP * 0.4e12))
    near, far = (16384, 2048, 4096), (16384, 256, 4096)
    assert seconds(device, "bf16", near, 0.0)[0] > seconds(DEVICE, "bf16", near, 0.0)[0]
    assert seconds(device, "bf16", far, 0.0) == seconds(DEVICE, "bf16", far, 0.0)


def test_the_rate_is_what_the_largest_product_sustains() -> None:
    burst, long = Rate("4096 x 4096 x 4096", "bf16", 2e12), Rate("16384 x 4096 x 128256", "bf16", 0.9e12)
    rates = (*PLAIN.compute.matmul, burst, long, Rate("dense", "bf16", 9e15))
    device = device_of(replace(PLAIN, compute=replace(PLAIN.compute, matmul=rates)))
    assert device.rate("bf16") == pytest.approx(IN_STEP * 0.9e12)
    short, _ = seconds(device, "bf16", (4096, 4096, 4096), 0.0)
    assert short == pytest.approx(2 * 4096**3 / (IN_STEP * 0.9e12))  # faster alone only


def test_data_sheets_count_for_what_devices_were_seen_to_reach() -> None:
    stated = device_of(replace(PLAIN, kind="datasheet"))
    assert stated.rate("bf16") / DEVICE.rate("bf16") == pytest.approx(694 / 989.5)
    assert stated.memory / DEVICE.memory == pytest.approx(4.27 / 4.8)
    mixed = Compute((*PLAIN.compute.matmul, Rate("dense by the data sheet", "fp32", 1e11)), copy=1e9)
    assert device_of(replace(PLAIN, compute=mixed)).rate("fp32") == pytest.approx(IN_STEP * 1e11 * 694 / 989.5)
    assert DEVICE.rate("fp16") == DEVICE.rate("bf16")


def attention(**changes: Any) -> Attention:
    return replace(Attention(1, 1, 1, 64, 1024, 1024, 1024, 2, "bf16"), **changes)


def test_attention_makes_the_scores_that_a_query_sees() -> None:
    assert attention().scores == 1024 * (512 + 64)
    assert attention(window=256).scores == 1024 * (224 + 64)  # 256 less what the first 256 queries do not see
    assert attention(queries=512).scores == 512 * (512 + 64)
    assert attention(window=32, keys=64, queries=64).scores == 64 * 64  # never more than there are
    fast = replace(DEVICE, memory=1e30)
    both = sum(attention().seconds(fast, phase) for phase in ("forward", "backward"))
    assert both == pytest.approx(589_824 * (0.612 * 14 * 64 + 922) / (IN_STEP * 1e12))


def test_attention_is_as_it_was_measured_alone() -> None:
    """cuDNN on an H200, forward and backward, ms (benchmarks/trainer_notes.md); products alone reach 694 TFLOP/s."""
    compute = Compute((Rate("8192 x 8192 x 8192", "bf16", 694e12 / IN_STEP),), copy=4.27e12)
    device = device_of(replace(PLAIN, compute=compute))
    for shape, milliseconds in (
        (Attention(64, 12, 12, 64, 1024, 1024, 1024, 2, "bf16"), 1.38),
        (Attention(8, 16, 16, 128, 4096, 4096, 4096, 2, "bf16"), 3.70),
        (Attention(2, 32, 8, 128, 8192, 8192, 8192, 2, "bf16"), 7.1),
        (Attention(80, 4, 4, 64, 512, 512, 512, 2, "bf16"), 0.2185),
        (Attention(80, 6, 6, 64, 512, 512, 512, 2, "bf16"), 0.3168),
    ):
        found = sum(shape.seconds(device, phase) for phase in ("forward", "backward"))
        assert found * 1e3 == pytest.approx(milliseconds, rel=0.05)


def test_attention_that_the_profile_has_is_as_it_was_measured_there() -> None:
    counted = 7 * 2 * 8 * 2048**2 * 64
    rate = Rate("2 x 8 x 2048 x 64, causal, forward and backward", "bf16", 1e11)
    forward = Rate("2 x 8 x 2048 x 64, causal, forward", "bf16", 9e11)
    device = device_of(replace(PLAIN, compute=replace(PLAIN.compute, copy=1e30, attention=(forward, rate))))
    shape = Attention(2, 8, 8, 64, 2048, 2048, 2048, 2, "bf16")
    assert both(shape, device) == pytest.approx(counted / 1e11 / IN_STEP, rel=1e-6)
    assert both(replace(shape, sequences=4, heads=4), device) == pytest.approx(counted / 1e11 / IN_STEP, rel=1e-6)
    far, plain = replace(shape, queries=8192, keys=8192, window=8192), replace(DEVICE, memory=1e30)
    assert both(far, device) == pytest.approx(both(far, plain), rel=1e-6)


def both(shape: Attention, device: Device) -> float:
    return sum(shape.seconds(device, phase) for phase in ("forward", "backward"))


def shape(**changes: Any) -> BlockShape:
    found = BlockShape(1000, 256, 768, 704, 1, 2, "bf16", False, True, False, False, attention())
    return replace(found, **changes)


def test_passes_of_a_block_by_hand() -> None:
    """Forward 9 widths, 2 joint, 3 hidden; backward 8 widths, 2 joint, 5 hidden, or 6 where it makes them again."""
    time = block_time(shape(), DEVICE)
    assert time.forward["norms and elementwise"] == pytest.approx(2 * 1000 * (2304 + 1536 + 2112) / 0.9e9)
    assert time.backward["norms and elementwise"] == pytest.approx(2 * 1000 * (2048 + 1536 + 3520) / 0.9e9)
    again = block_time(shape(keep=False), DEVICE).backward["norms and elementwise"]
    assert again == pytest.approx(2 * 1000 * (2048 + 1536 + 4224) / 0.9e9)
    cut = block_time(shape(cut=2), DEVICE)
    assert cut.forward["norms and elementwise"] == pytest.approx(time.forward["norms and elementwise"] / 2)
    assert "casts" not in time.forward
    matrices = 256 * 768 + 256 * 256 + 2 * 704 * 256 + 704 * 256
    casts = block_time(shape(casts=True), DEVICE)
    assert casts.forward["casts"] == casts.backward["casts"] == pytest.approx(6 * matrices / 0.9e9)
    quick = block_time(shape(casts=True), replace(DEVICE, memory=1e30))
    assert quick.forward["casts"] == 4 * 2.5e-6  # no kernel is shorter


def test_what_is_made_again_is_a_forward_pass_without_its_end() -> None:
    time = block_time(shape(), DEVICE)
    assert time.again["none"] == {}
    selective, full = time.again["selective"], time.again["full"]
    assert selective == {"recomputed elementwise": pytest.approx(2 * 1000 * (6 * 256 + 1536 + 2112) / 0.9e9)}
    down = sum(product(DEVICE, "bf16", (1000, 704, 256), 2, 2).values())
    forward = sum(time.forward.values())
    assert sum(full.values()) == pytest.approx(forward - down - 2 * 1000 * 3 * 256 / 0.9e9)
    compiled = block_time(shape(compiled=True), DEVICE)  # whose code is one function
    assert sum(compiled.again["full"].values()) == pytest.approx(forward)
    assert compiled.again["selective"] == selective


def test_fp8_products_are_faster_and_their_casts_are_not_free() -> None:
    compute = replace(PLAIN.compute, matmul=(*PLAIN.compute.matmul, Rate("8192 x 8192 x 8192", "fp8", 2e12)))
    device = device_of(replace(PLAIN, compute=replace(compute, copy=1e12)))
    wide = shape(tokens=32768, width=4096, joint=12288, hidden=11264, keep=False)
    plain, narrow = block_time(wide, device), block_time(replace(wide, format="fp8"), device)
    assert narrow.forward["matmul"] == pytest.approx(plain.forward["matmul"] / 2, rel=0.01)
    inputs, matrices = 3 * 4096 + 11264, 4096 * (12288 + 4096 + 3 * 11264)
    assert narrow.forward["casts"] == pytest.approx((6 * 32768 * inputs + 10 * matrices) / 0.9e12)
    seen = block_time(replace(wide, format="fp8", history=True), device)
    assert seen.backward["casts"] == pytest.approx(4 * 32768 * (12288 + 4096 + 2 * 11264 + 4096) / 0.9e12)


def test_head_and_embedding_by_hand() -> None:
    head = HeadShape(tokens=4096, chunks=2, rows=16384, width=256, cut=1, size=2, format="bf16", casts=True)
    forward, backward = head_time(head, DEVICE)
    logits, weights, stream = 2 * 2048 * 16384, 16384 * 256, 2 * 4096 * 256
    assert forward["loss"] == pytest.approx((2 * 3 * logits + 8 * weights + 2 * stream) / 0.9e9)
    assert forward["casts"] == pytest.approx(6 * weights / 0.9e9)
    assert backward == {"loss": pytest.approx((2 * stream + 8 * weights + 3 * stream) / 0.9e9)}
    short = head_time(replace(head, rows=8192, chunks=1), DEVICE)[0][
        "loss"
    ]  # a row is in the cache for its second read
    assert short == pytest.approx((2 * 2 * 4096 * 8192 + 2 * stream) / 0.9e9)
    there, back = embedding_time(4096, 256, 16384, 2, DEVICE)
    assert there == {"embedding": pytest.approx(4096 * 256 * 14 / 0.9e9)}
    assert back == {"embedding": pytest.approx((4096 * 256 * 18 + 4 * weights) / 0.9e9)}


def config(**sections: Any) -> RunConfig:
    found = RunConfig(
        MODEL,
        DataConfig(vocab_size=8192, sequence_length=512),
        BatchConfig(tokens=8 * 512),
        precision=PrecisionConfig(name="bf16"),
    )
    return replace(found, **sections)


def test_an_update_reads_and_writes_what_the_optimizer_has() -> None:
    total = params(MODEL, 8192).total
    one = Axes()
    assert update_time(config(), one, 0, DEVICE) == pytest.approx(32 * total / (0.955 * 1e9))
    short = config(precision=PrecisionConfig(name="bf16", optimizer_state="bf16"))
    assert update_time(short, one, 0, DEVICE) == pytest.approx((32 + 2 * 66) * total / (0.955 * 1e9))
    plain = config(optim=OptimConfig(name="sgd"))
    assert update_time(plain, one, 0, DEVICE) == pytest.approx(24 * total / (0.955 * 1e9))
    moved = replace(DEVICE, host=1e8)
    away = config(memory=MemoryConfig(offload="optimizer"))
    assert update_time(away, one, 0, moved) == pytest.approx(32 * total / (0.955 * 1e9) + 16 * total / 1e8)


def test_further_micro_batches_add_gradients_to_those_there_are() -> None:
    total, shared = params(MODEL, 8192).total, Axes(dp_shard=2)
    assert accumulated(config(), Axes(), 0, 1) == 0.0
    assert accumulated(config(), Axes(), 0, 4) == 12 * 3 * total
    assert accumulated(config(), shared, 0, 4) == pytest.approx(12 * 3 * total / 2, rel=1e-3)  # summed at once: shards
    whole = config(parallel=ParallelConfig(zero=1))
    assert accumulated(whole, shared, 0, 4) == pytest.approx(12 * 3 * total, rel=1e-3)


def test_muon_multiplies_every_matrix_of_every_block_by_itself() -> None:
    arithmetic = replace(DEVICE, memory=1e30, products=())
    taken = update_time(config(optim=OptimConfig(name="muon", muon_iterations=1)), Axes(), 0, arithmetic)
    square = 3 * 2 * 256**3 / busy(256, 256, 256)
    long = (
        2 * 2 * 256**2 * 704 / busy(256, 704, 256) / 2
        + 2 * 256**3 / busy(256, 256, 256)
        + 2 * 256**2 * 704 / busy(256, 256, 704)
    )
    assert taken == pytest.approx(2 * (4 * square + 3 * long) / (IN_STEP * 1e12))
    half = update_time(config(optim=OptimConfig(name="muon", muon_iterations=1)), Axes(dp_shard=2), 0, arithmetic)
    assert half == pytest.approx(taken / 2)


def test_the_shape_of_a_block_is_the_configs() -> None:
    grouped = config(model=replace(MODEL, kv_heads=2), precision=PrecisionConfig(name="fp8"))
    found = shape_of(grouped, Axes(tp=2, cp=2), 8, window=None, sharded=True, narrow=True)
    assert (found.tokens, found.joint, found.cut, found.format, found.casts) == (2048, 512, 2, "fp8", False)
    assert found.products == ((256, 256), (128, 256), (256, 704), (352, 256))
    mixed = found.attention
    assert (mixed.heads, mixed.groups, mixed.queries, mixed.keys, mixed.window) == (2, 1, 256, 512, 512)
    assert mixed.format == "bf16"


def test_a_profile_without_copies_or_a_format_is_told_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"cluster profile plain: compute.copy is missing.*study bench comm profile="):
        device_of(replace(PLAIN, compute=replace(PLAIN.compute, copy=None)))
    with pytest.raises(ValueError, match=r"compute.matmul has no rate for fp8 \(it has bf16\), which precision.name"):
        DEVICE.rate("fp8")
    with pytest.raises(ValueError, match=r"no rate for bf16 \(it has none\)"):
        device_of(replace(PLAIN, compute=Compute(copy=1e9))).rate("bf16")
    assert devices.OF_DATASHEET["matmul"] < 1.0
