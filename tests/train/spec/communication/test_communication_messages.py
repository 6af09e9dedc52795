"""What the formulas of messages rest on: torch's buckets, the head's chunks, nccl-tests' factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size

from kernels.cross_entropy.linear import TRITON_CHUNK_BYTES, chunk_rows
from train.spec.communication.data_parallel import BUCKET, FIRST_BUCKET, buckets, units
from train.spec.communication.experts import expert_parallel
from train.spec.communication.layers import head_chunks, stream_bytes, tensor_parallel
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, COLLECTIVES, REDUCE_SCATTER, Message, bus_factor
from train.spec.communication.stages import micro_batches_of, stages
from train.spec.communication.step import step_messages
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.counts import params
from train.spec.mesh import axes
from train.spec.resolve import resolve

MODEL = ModelConfig(width=1024, layers=8, head_dim=64, kv_heads=4, mlp_width=2816)
LENGTH, VOCABULARY = 2048, 32768


def config(sequences: int = 64, model: ModelConfig = MODEL, **layout: Any) -> RunConfig:
    parallel = ParallelConfig(**{"dp_replicate": 1, "micro_batch_sequences": 2, **layout})
    return resolve(
        RunConfig(
            model=model,
            data=DataConfig(vocab_size=VOCABULARY, sequence_length=LENGTH),
            batch=BatchConfig(tokens=sequences * LENGTH),
            budget=BudgetConfig(tokens=10 * sequences * LENGTH),
            precision=PrecisionConfig(name="bf16"),
            parallel=parallel,
        )
    )


def messages(ranks: int, sequences: int = 64, **layout: Any) -> tuple[Message, ...]:
    made = config(sequences, **layout)
    return step_messages(made, axes(made.parallel, ranks))


@given(st.lists(st.integers(1, 4_000_000), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_buckets_are_those_of_torch(numbers: list[int]) -> None:
    weights = [torch.empty(count, device="meta") for count in numbers]
    found, _ = _compute_bucket_assignment_by_size(weights, [FIRST_BUCKET, BUCKET])
    assert buckets([4 * count for count in numbers]) == [sum(4 * numbers[i] for i in bucket) for bucket in found]


@pytest.mark.parametrize("tokens", [64, 100, 4096, 70_000])
def test_chunks_of_the_head_are_those_of_the_kernel(tokens: int) -> None:
    made = config(tp=4, dp_shard=1)
    shape, columns = axes(made.parallel, 4), VOCABULARY // 4
    rows = chunk_rows(columns, "cpu")
    assert head_chunks(made, shape, tokens, "cpu") == [min(rows, tokens - at) for at in range(0, tokens, rows)]
    most = chunk_rows(columns, "cuda", torch.bfloat16, TRITON_CHUNK_BYTES)
    found = head_chunks(made, shape, tokens, "cuda")
    assert sum(found) == tokens and len(found) == -(-tokens // most) and max(found) <= most


def test_bus_factors_are_those_of_nccl_tests() -> None:
    found = {name: bus_factor(name, 8) for name in COLLECTIVES}
    assert found == {
        "all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "broadcast": 1.0,
        "send": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="'gather' is not known: choose one of all_reduce"):
        bus_factor("gather", 8)


def test_zero_3_sends_one_and_a_half_times_what_zero_2_sends_of_one_micro_batch() -> None:
    """As Rajbhandari et al. 2020, section 7: 3 Psi instead of 2 Psi, where messages of both kinds are as long."""
    weights = 2 * params(MODEL, VOCABULARY).total
    sums = {zero: _of(messages(16, 32, dp_shard=16, zero=zero), ALL_GATHER, "fsdp") for zero in (1, 2, 3)}
    assert sums[1] == sums[2] == pytest.approx(weights, rel=1e-3)
    head = 2 * VOCABULARY * MODEL.width + 2 * MODEL.width  # not freed between the passes
    assert sums[3] == pytest.approx(2 * weights - head, rel=1e-3)
    gradients = _of(messages(16, 32, dp_shard=16), REDUCE_SCATTER, "fsdp")
    assert gradients == pytest.approx(2 * weights, rel=1e-3), "in fp32"


def test_accumulation_costs_zero_3_its_messages_again_and_zero_1_none() -> None:
    for zero, times in ((1, 1), (2, 1), (3, 4)):
        once, four = messages(16, 32, dp_shard=16, zero=zero), messages(16, 128, dp_shard=16, zero=zero)
        assert _of(four, ALL_GATHER, "fsdp") == times * _of(once, ALL_GATHER, "fsdp")
        sums = _of(four, REDUCE_SCATTER, "fsdp") / _of(once, REDUCE_SCATTER, "fsdp")
        assert sums == (1 if zero == 1 else 4)


def test_sequence_parallelism_sends_as_much_as_all_reduces() -> None:
    made = config(tp=4, dp_shard=1)
    shape = axes(made.parallel, 4)
    (stage,), micro = stages(made, shape, 0), micro_batches_of(made, shape, "cuda")
    layers = [one for one in tensor_parallel(made, shape, stage, micro) if one.of in OF_BLOCKS]
    each = stream_bytes(made, shape, 1) * sum(micro.sizes) * 2 * len(stage.blocks)  # attention and feed-forward layer
    plain = [Message(ALL_REDUCE, "tp", shape.tp, each, 1, "layers", phase) for phase in ("forward", "backward")]
    assert sum(one.sent for one in layers) == sum(one.sent for one in plain) > 0


OF_BLOCKS = ("inputs of layers", "outputs of layers", "gradients of outputs", "gradients of inputs")


def test_few_key_value_heads_make_context_parallelism_cheap() -> None:
    many, few = (
        step_messages(made, axes(made.parallel, 4))
        for made in (config(model=replace(MODEL, kv_heads=heads), cp=4, dp_shard=1) for heads in (16, 4))
    )
    sent = [sum(one.sent for one in found if one.axis == "cp") for found in (many, few)]
    assert sent[0] == 4 * sent[1] > 0


def test_a_world_of_one_sends_nothing() -> None:
    assert messages(1, dp_shard=1) == ()


def test_every_weight_is_in_one_unit() -> None:
    for tied in (False, True):
        made = config(model=replace(MODEL, tied_embeddings=tied), dp_shard=8)
        shape = axes(made.parallel, 8)
        (stage,) = stages(made, shape, 0)
        total = 8 * sum(times * unit.numbers for unit, times in units(made, shape, stage).items())
        assert total == pytest.approx(params(made.model, VOCABULARY).total, rel=1e-3)


def test_experts_take_four_messages_a_layer() -> None:
    found = list(
        expert_parallel(tokens=4096, width=1024, chosen=2, itemsize=2, ranks=8, layers=3, micro_batches=5, capacity=1.5)
    )
    assert {one.size for one in found} == {int(1.5 * 4096 * 2 * 1024 * 2)}
    assert sum(one.count for one in found) == 4 * 3 * 5
    assert found[0].sent == 7 / 8 * found[0].size * 15
    with pytest.raises(ValueError, match="chosen=0"):
        list(expert_parallel(tokens=1, width=1, chosen=0, itemsize=2, ranks=8, layers=1, micro_batches=1))


def _of(found: tuple[Message, ...], collective: str, axis: str) -> int:
    return sum(one.volume for one in found if (one.collective, one.axis) == (collective, axis))
