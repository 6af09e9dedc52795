"""The memory of a step at its moments: against recorded peaks, torch's schedules, and by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules

from benchmarks.peers.rows import SHAPES
from train.memory.activation_checkpointing import modes
from train.spec.accounting import held, kept, outside, step
from train.spec.accounting.step import Sheet, in_flight, of_rank, sheet, with_stage
from train.spec.communication.step import step_messages
from train.spec.config import (
    BatchConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.footprint import footprint, of_a_token
from train.spec.mesh import Axes
from train.spec.pipeline_layout import stages_of

GIB = 2**30


def recorded(model: str) -> tuple[ModelConfig, int, int]:
    if model in SHAPES:
        return SHAPES[model].model, SHAPES[model].vocabulary, SHAPES[model].length
    width, layers = map(int, model.split("x"))
    return ModelConfig(width=width, layers=layers, head_dim=32), 8192, 1024


@pytest.mark.parametrize(
    ("model", "sequences", "precision", "gpus", "measured"),
    [
        # benchmarks/results/trainer_peers.json, compiled
        ("150m", 64, "bf16", 1, 19.110),
        ("1b", 8, "bf16", 1, 42.609),
        ("1b", 8, "bf16", 2, 35.524),
        ("1b", 8, "fp8", 1, 43.596),
        # steps of small models as CUDA graphs: of 40,960 tokens, the second one compiled
        ("96x2", 40, "bf16", 1, 1.051),
        ("256x4", 80, "bf16", 1, 2.157),
        ("352x6", 40, "bf16", 1, 4.083),
        ("768x12", 80, "bf16", 1, 11.584),
    ],
)
def test_peaks_are_those_that_were_measured(
    model: str, sequences: int, precision: str, gpus: int, measured: float
) -> None:
    """torch.cuda.max_memory_allocated on H200s, torch 2.11, 2026-11-22 and -23 [GiB]."""
    shape, vocabulary, length = recorded(model)
    config = RunConfig(
        shape,
        DataConfig(sequence_length=length, vocab_size=vocabulary),
        BatchConfig(tokens=gpus * sequences * length),
        precision=PrecisionConfig(name=precision),
        parallel=ParallelConfig(micro_batch_sequences=sequences, dp_shard=gpus),
    )
    found = sheet(config, Axes(dp_shard=gpus))
    assert found.peak.name == "loss"
    assert abs(found.peak.total / GIB / measured - 1) <= 0.005
    assert found.needed > measured * GIB
    assert found.peak.total < footprint(config, Axes(dp_shard=gpus), "cuda").total


def test_narrow_blocks_that_are_compiled_keep_a_little_more() -> None:
    """352 x 6 took 4.083 GiB with our kernels and 4.113 compiled (as above)."""
    shape, vocabulary, length = recorded("352x6")
    config = RunConfig(
        shape,
        DataConfig(sequence_length=length, vocab_size=vocabulary),
        BatchConfig(tokens=40 * length),
        precision=PrecisionConfig(name="bf16"),
    )
    found = sheet(config, Axes(), sequences=40)
    assert -0.01 <= found.peak.total / GIB / 4.113 - 1 < 0
    assert found.needed > 4.113 * GIB


ORDERS = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2),
    "zb1p": (schedules.ScheduleInterleavedZeroBubble, 2),
    "zbv": (schedules.ScheduleZBVZeroBubble, 2),
}


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("schedule", ORDERS)
def test_micro_batches_in_flight_are_those_of_torchs_orders(schedule: str, pp: int) -> None:
    kind, stages = ORDERS[schedule]
    parallel = ParallelConfig(pp=pp, pp_schedule=schedule, pp_stages=stages)
    config = RunConfig(ModelConfig(layers=2 * pp), parallel=parallel)
    count = 4 * pp
    plans: Any = [
        SimpleNamespace(
            group_size=pp, group_rank=0, num_stages=2 * pp, stage_index=index, is_first=index == 0, submod=None,
            is_last=index == 2 * pp - 1, has_backward=True, device=torch.device("cpu"), group=None,
            stage_index_to_group_rank=None,
        )
        for index in stages_of(parallel, 0)
    ]  # fmt: skip
    order = kind(plans, count, loss_fn=lambda *_: 0).pipeline_order
    for rank, actions in order.items():
        waiting = most = 0
        for action in actions:
            if action is not None:
                waiting += action.computation_type == schedules.FORWARD
                most = max(most, waiting)
                waiting -= action.computation_type in (schedules.FULL_BACKWARD, schedules.BACKWARD_WEIGHT)
        assert in_flight(config, count, rank) == most / stages


@pytest.mark.parametrize(
    ("schedule", "waiting"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [6, 6, 6, 6]), ("interleaved", [5.5, 4.5, 3.5, 2.5])]
)
def test_micro_batches_in_flight_by_hand(schedule: str, waiting: list[float]) -> None:
    config = RunConfig(ModelConfig(layers=8), parallel=ParallelConfig(pp=4, pp_schedule=schedule))
    assert [in_flight(config, 6, rank) for rank in range(4)] == waiting
    assert in_flight(config, 1, 0) == 1


MODEL = ModelConfig(width=640, layers=4, head_dim=64, kv_heads=2, mlp_width=1280)
LENGTH = 256


def run(sequences: int = 4, tokens: int = 4 * LENGTH, **changes: Any) -> RunConfig:
    changes.setdefault("parallel", ParallelConfig(micro_batch_sequences=sequences))
    return RunConfig(
        changes.pop("model", MODEL),
        DataConfig(sequence_length=LENGTH, vocab_size=1024),
        BatchConfig(tokens=tokens),
        **changes,
    )


def parts(found: Sheet, name: str) -> dict[str, int]:
    return dict(next(moment for moment in found.moments if moment.name.startswith(name)).parts)


def test_one_gpu_by_hand() -> None:
    config = run(precision=PrecisionConfig(name="bf16"))
    found = sheet(config, Axes())
    matrices = 640 * (640 + 4 * 64) + 640 * 640 + 3 * 640 * 1280
    total = 4 * (matrices + 2 * 640 + 2 * 64) + 2 * 1024 * 640 + 640
    tokens = 4 * LENGTH
    block = kept.block_bytes(config, Axes(), "cuda", "none", 4)
    loss = parts(found, "loss")
    assert loss == {
        "weights": 4 * total,
        "moments": 8 * total,
        "casts": 2 * 4 * matrices + 2 * 1024 * 640,
        "activations": 4 * block + tokens * (16 + 2 * 640 + 4),
        "logits": 2 * 1024 * tokens,
        "head": 4 * 1024 * 640 + 2 * 2 * tokens * 640,
        "workspaces": 3 * outside.WORKSPACE,
    }, "gradients are not there yet"
    assert [moment.name for moment in found.moments] == [
        "loss", *(f"backward of block {left} of 4" for left in (4, 3, 2, 1)), "update"
    ]  # fmt: skip
    last = parts(found, "backward of block 1")
    assert last["gradients"] == 4 * (3 * (matrices + 2 * 640 + 2 * 64) + 1024 * 640)
    assert last["activations"] == block
    assert last["gradient buffers"] == 4 * (matrices + 2 * 640 + 2 * 64)
    assert parts(found, "update") == {
        "weights": 4 * total, "moments": 8 * total, "gradients": 4 * total, "workspaces": 3 * outside.WORKSPACE
    }  # fmt: skip
    assert found.needed == found.peak.total + found.margin + outside.CONTEXT
    assert found.margin == round(0.01 * found.peak.total)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"dp_replicate": 8},
        {"dp_shard": 8},
        {"dp_replicate": 2, "dp_shard": 4},
        {"dp_shard": 2, "cp": 2, "tp": 2},
        {"dp_shard": 2, "tp": 2, "pp": 2},
        {"dp_replicate": 4, "pp": 2},
    ],
)
def test_nccl_has_a_communicator_for_each_group_that_a_step_sends_through(layout: dict[str, int]) -> None:
    whole: dict[str, Any] = {"dp_replicate": 1, "dp_shard": 1, **layout}
    config, axes = run(64, 512 * LENGTH, parallel=ParallelConfig(**whole)), Axes(**whole)
    ranks = (step_messages(config, axes, rank) for rank in range(axes.pp))
    groups = max(len({one.axis for one in messages}) for messages in ranks)
    found = sheet(config, axes)
    assert found.nccl == groups * outside.CHANNELS * outside.BUFFERS
    assert found.needed == found.peak.total + found.margin + found.context + found.nccl
    assert sheet(config, axes, "cpu").nccl == 0


def test_accumulated_gradients_are_there_all_the_time() -> None:
    once, twice = (parts(sheet(run(tokens=n * 4 * LENGTH), Axes()), "loss") for n in (1, 2))
    assert "gradients" not in once
    assert twice["gradients"] == twice["weights"]
    ddp = sheet(run(tokens=8 * LENGTH, parallel=ParallelConfig(dp_replicate=2, micro_batch_sequences=4)), Axes(2))
    assert parts(ddp, "loss")["gradients"] == once["weights"], "the buckets of DistributedDataParallel"


def test_the_stages_of_zero_hold_less_and_less() -> None:
    config = run(tokens=64 * LENGTH, parallel=ParallelConfig(micro_batch_sequences=4, dp_replicate=1, dp_shard=8))
    sheets = {}
    for stage in range(4):
        changed, axes = with_stage(config, Axes(dp_shard=8), stage)
        assert axes.size == 8
        sheets[stage] = sheet(changed, axes)
    states = {
        stage: {name: parts(one, "loss").get(name, 0) for name in step.COMPONENTS} for stage, one in sheets.items()
    }
    assert all(states[0][name] == pytest.approx(8 * states[1][name], rel=0.01) for name in ("weights", "moments"))
    assert states[1]["weights"] == states[2]["weights"] == states[3]["weights"]
    assert states[1]["gradients"] > states[2]["gradients"] == states[3]["gradients"]
    assert states[1]["gathered"] == states[2]["gathered"] > states[3]["gathered"] > states[0]["gathered"] == 0
    totals = [sheets[stage].peak.total for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    with pytest.raises(ValueError, match=r"stage 0 is not possible with parallel\.cp=2"):
        with_stage(config, Axes(dp_shard=4, cp=2), 0)
    tensor, axes = with_stage(config, Axes(dp_shard=4, tp=2), 0)
    assert (tensor.parallel.strategy, axes) == ("auto", Axes(dp_replicate=4, tp=2))
    hybrid, axes = with_stage(config, Axes(dp_replicate=2, dp_shard=4), 2)
    assert (hybrid.parallel.zero, axes) == (2, Axes(dp_replicate=2, dp_shard=4))


def test_stage_3_gathers_a_block_at_a_time() -> None:
    layout = ParallelConfig(micro_batch_sequences=4, dp_replicate=1, dp_shard=8)
    config = run(tokens=32 * LENGTH, parallel=layout, precision=PrecisionConfig(name="bf16", reduce="bf16"))
    found, part = sheet(config, Axes(dp_shard=8)), held.part_of(config, Axes(dp_shard=8), 0)
    assert parts(found, "loss")["gathered"] == 2 * 2 * part.head.gathered, "its weight, and the message that brought it"
    first, second = (parts(found, f"backward of block {left}") for left in (4, 3))
    assert first["gathered"] == second["gathered"] == 2 * 2 * part.block.gathered
    assert first["gradient buffers"] == 2 * part.block.gathered + 2 * part.head.gathered
    assert second["gradient buffers"] == 2 * part.block.gathered + 2 * part.block.gathered
    assert "casts" not in first
    assert parts(found, "backward of the embedding")["gradient buffers"] == 4 * part.embedding.gathered
    assert found.margin == round(0.08 * found.peak.total)


@pytest.mark.parametrize("stage", [1, 2])
def test_below_stage_3_the_last_micro_batch_frees_block_by_block(stage: int) -> None:
    layout = ParallelConfig(micro_batch_sequences=4, dp_replicate=1, dp_shard=8, zero=stage)
    bf16, axes = PrecisionConfig(name="bf16"), Axes(dp_shard=8)
    once, twice = (run(tokens=n * 32 * LENGTH, parallel=layout, precision=bf16) for n in (1, 2))
    part = held.part_of(once, axes, 0)
    freed = [parts(sheet(once, axes), f"backward of block {left}")["gathered"] for left in (4, 3, 2, 1)]
    assert freed == [2 * (left * part.block.gathered + part.embedding.gathered) for left in (4, 3, 2, 1)]
    assert parts(sheet(once, axes), "backward of the embedding")["gathered"] == 2 * part.embedding.gathered
    assert parts(sheet(once, axes), "loss")["gathered"] == 2 * part.gathered
    kept = {moment.parts["gathered"] for moment in sheet(twice, axes).moments if moment.name != "update"}
    assert kept == {2 * part.gathered}, "the first of two micro-batches frees nothing"


def test_at_stage_1_gradients_are_whole_until_the_last_micro_batch_sums_them_up() -> None:
    """1B on two H200s, two micro-batches of 4 x 4,096 tokens a rank, torch 2.11, 2026-11-28: 27.181 GiB."""
    shape = SHAPES["1b"]
    config = RunConfig(
        shape.model,
        DataConfig(sequence_length=shape.length, vocab_size=shape.vocabulary),
        BatchConfig(tokens=16 * shape.length),
        precision=PrecisionConfig(name="bf16"),
        parallel=ParallelConfig(micro_batch_sequences=4, dp_replicate=1, dp_shard=2, zero=1),
        compile=CompileConfig(blocks=True),
    )
    axes = Axes(dp_shard=2)
    found, part = sheet(config, axes), held.part_of(config, axes, 0)
    assert parts(found, "loss")["gradients"] == 4 * part.gathered
    assert parts(found, "update")["gradients"] == 4 * part.shard
    assert found.peak.total / GIB == pytest.approx(27.181, rel=0.001)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_peak_of_stages_1_and_2_under_checkpointing_is_as_measured(stage: int) -> None:
    """8B on two H200s, 2 x 8,192 tokens a rank, torch 2.11, 2026-11-28: 69.31 GiB."""
    shape = SHAPES["8b"]
    config = RunConfig(
        shape.model,
        DataConfig(sequence_length=shape.length, vocab_size=shape.vocabulary),
        BatchConfig(tokens=4 * shape.length),
        precision=PrecisionConfig(name="bf16"),
        parallel=ParallelConfig(micro_batch_sequences=2, dp_replicate=1, dp_shard=2, zero=stage),
        memory=MemoryConfig(checkpointing="full"),
    )
    assert sheet(config, Axes(dp_shard=2)).peak.total / GIB == pytest.approx(69.31, rel=0.01)


def test_blocks_that_are_gathered_ahead_are_there_as_well() -> None:
    layout = ParallelConfig(micro_batch_sequences=4, dp_replicate=1, dp_shard=8, fsdp_prefetch=2)
    config = run(tokens=32 * LENGTH, parallel=layout, precision=PrecisionConfig(name="bf16"))
    found, part = sheet(config, Axes(dp_shard=8)), held.part_of(config, Axes(dp_shard=8), 0)
    blocks = [
        parts(found, f"backward of block {left}")["gathered"] / (2 * part.block.gathered) for left in (4, 3, 2, 1)
    ]
    assert blocks == [3, 3, 2, 2], "two more, as long as there are two before it; then an end's weight"


@pytest.mark.parametrize(("policy", "full"), [("full", 4), ("every", 2), ("budget", 4)])
def test_checkpointed_blocks_keep_their_input_and_are_made_again(policy: str, full: int) -> None:
    config = run(memory=MemoryConfig(checkpointing=policy))
    whole, part = (kept.block_bytes(config, Axes(), "cuda", mode, 4) for mode in ("none", "full"))
    plain, found = sheet(run(), Axes()), sheet(config, Axes())
    less = parts(plain, "loss")["activations"] - parts(found, "loss")["activations"]
    assert less == full * (whole - part)
    assert parts(found, "backward of block 3")["recomputed block"] == whole
    assert part == 4 * LENGTH * 4 * 640


def test_every_second_block_is_counted_over_the_whole_model_as_the_trainer_does() -> None:
    """Of four stages of a layer each on two ranks, the first rank has blocks 0 and 2, the second 1 and 3."""
    layout = ParallelConfig(pp=2, pp_schedule="interleaved", pp_stages=2, pp_layers=(1,) * 4, micro_batch_sequences=1)
    every, plain, full = (
        run(tokens=8 * LENGTH, parallel=layout, memory=MemoryConfig(checkpointing=policy, every=2))
        for policy in ("every", "none", "full")
    )
    axes = Axes(pp=2)
    assert [held.part_of(every, axes, rank).block_numbers for rank in (0, 1)] == [(0, 2), (1, 3)]
    assert modes(every.memory, 4) == kept.modes(every, range(4))
    for rank, same in ((0, full), (1, plain)):
        found, wanted = (of_rank(one, axes, "cuda", 1, rank).moments for one in (every, same))
        assert [moment.parts for moment in found][-1] == [moment.parts for moment in wanted][-1]
        assert max(moment.total for moment in found) == max(moment.total for moment in wanted)


def test_what_is_offloaded_lies_on_the_host() -> None:
    plain, optimizer, everything = (
        sheet(run(memory=MemoryConfig(offload=where)), Axes(dp_shard=2))
        for where in ("none", "optimizer", "parameters")
    )
    moments = parts(plain, "loss")["moments"]
    assert plain.host == 0
    assert optimizer.host == moments
    assert "moments" not in parts(optimizer, "loss") and parts(optimizer, "update")["moments"] == moments
    assert everything.host == 2 * moments
    assert set(parts(everything, "loss")) == {"gathered", "activations", "logits", "head", "workspaces"}
    assert set(parts(everything, "update")) == {"workspaces"}
    assert sheet(run(memory=MemoryConfig(offload="parameters")), Axes(dp_shard=2), "cpu").host == 0


def test_a_pipelines_ranks_hold_what_waits_for_them() -> None:
    layout = ParallelConfig(pp=4, micro_batch_sequences=1, dp_replicate=1)
    config = run(tokens=8 * LENGTH, parallel=layout, precision=PrecisionConfig(name="bf16"))
    ranks = [of_rank(config, Axes(pp=4), "cuda", 1, rank) for rank in range(4)]
    assert [one.waiting for one in ranks] == [4, 3, 2, 1]
    assert [one.micro_batches for one in ranks] == [8] * 4
    block = kept.block_bytes(config, Axes(), "cuda", "none", 1)
    assert parts(ranks[1], "backward")["activations"] == 3 * block
    message = 2 * 640 * LENGTH
    assert parts(ranks[1], "backward")["messages"] == 2 * 8 * message
    assert parts(ranks[0], "backward")["messages"] == 8 * message
    twice = replace(config, parallel=replace(layout, pp=2, pp_schedule="interleaved", pp_stages=2))
    assert parts(of_rank(twice, Axes(pp=2), "cuda", 1, 0), "backward")["messages"] == 2 * 3 * 8 * message
    assert parts(ranks[1], "backward")["casts"] == 3 * 2 * held.part_of(config, Axes(pp=4), 1).block.matrices
    assert "loss" not in [moment.name for moment in ranks[0].moments]
    assert sheet(config, Axes(pp=4)).needed == max(one.needed for one in ranks)


def test_a_pipeline_keeps_whole_weights_and_gradients_until_its_last_micro_batch() -> None:
    """As torch.distributed.pipelining's stages tell FSDP2 (stage.py, backward_maybe_with_nosync)."""
    layout = ParallelConfig(pp=2, micro_batch_sequences=1, dp_replicate=1, dp_shard=2)
    config, axes = (
        run(tokens=16 * LENGTH, parallel=layout, precision=PrecisionConfig(name="bf16")),
        Axes(dp_shard=2, pp=2),
    )
    part, found = held.part_of(config, axes, 0), of_rank(config, axes, "cuda", 1, 0)
    backward, update = parts(found, "backward of block"), parts(found, "update")
    assert (backward["gathered"], backward["gradients"]) == (2 * part.gathered, 4 * part.gathered)
    assert update["gradients"] == 4 * part.shard and "gathered" not in update


@pytest.mark.parametrize(("schedule", "others"), [("gpipe", 7), ("zb1p", 3), ("1f1b", 0), ("interleaved", 0)])
def test_the_last_rank_keeps_the_heads_gradients_of_micro_batches_that_wait(schedule: str, others: int) -> None:
    layout = ParallelConfig(pp=4, pp_schedule=schedule, pp_stages=1, micro_batch_sequences=1, dp_replicate=1)
    config = run(tokens=8 * LENGTH, parallel=layout, precision=PrecisionConfig(name="bf16"))
    first, last = (of_rank(config, Axes(pp=4), "cuda", 1, rank) for rank in (0, 3))
    each = 4 * 1024 * 640 + 2 * LENGTH * 640
    assert parts(last, "backward").get("head", 0) == others * each
    assert parts(last, "loss")["head"] == (others + 1) * each + 2 * LENGTH * 640
    assert "head" not in parts(first, "backward")


def test_tensor_parallel_ranks_share_and_gather() -> None:
    config = run(precision=PrecisionConfig(name="bf16"))
    alone, two = (parts(sheet(config, Axes(tp=tp)), "loss") for tp in (1, 2))
    assert two["logits"] == alone["logits"] // 2
    assert two["head"] == 4 * 512 * 640 + round(2.5 * 2 * 4 * LENGTH * 640), "all of the hidden states, on each rank"
    assert alone["activations"] / 2 < two["activations"] < alone["activations"]


def test_muon_needs_room_for_its_iterations() -> None:
    found = sheet(run(optim=OptimConfig(name="muon")), Axes())
    assert parts(found, "update")["update"] > 0
    assert parts(found, "loss")["moments"] < parts(sheet(run(), Axes()), "loss")["moments"]


def test_rounding_moments_has_the_largest_weight_in_four_forms_and_a_mark() -> None:
    """Both moments and random bits in fp32, one more in fp32, a byte each: of the gate with up, the largest here."""
    config = run(precision=PrecisionConfig(name="bf16", optimizer_state="bf16"))
    largest = 2 * 1280 * 640
    for axes, own in ((Axes(), largest), (Axes(dp_replicate=2), largest), (Axes(dp_shard=2), largest // 2)):
        assert held.rounding(config, held.part_of(config, axes, 0), 2, 1) == 17 * own
    assert held.rounding(run(), held.part_of(run(), Axes(), 0), 1, 1) == 0


def test_buffers_of_communicators_by_hand() -> None:
    """24 channels, each with 512 KiB (LL), 4.7 MiB (LL128) and 4 MiB (Simple)."""
    assert outside.nccl(2, "cuda") == 2 * 24 * (524_288 + 4_915_200 + 4_194_304)
    assert outside.nccl(2, "cpu") == 0


def test_gradients_on_their_way_are_shared_by_tensor_parallel_ranks() -> None:
    alone, four = (of_a_token(run(), axes, "cuda")[1] for axes in (Axes(), Axes(tp=2, cp=2)))
    assert four == alone / 4


def test_a_cpu_has_no_workspaces_and_no_context() -> None:
    found = sheet(run(), Axes(), "cpu")
    assert (found.context, found.margin) == (0, 0)
    assert "workspaces" not in found.peak.parts
    assert found.needed == found.peak.total
    assert sheet(replace(run(), parallel=ParallelConfig()), Axes()).sequences == 1
