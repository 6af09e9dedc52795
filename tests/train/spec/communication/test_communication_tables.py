"""All that a rank sends in a step, layout by layout, as literal numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.train.spec.communication.small_model import MODEL, config
from train.spec.communication.data_parallel import ddp_buckets
from train.spec.communication.layers import head_chunks
from train.spec.communication.stages import Stage, micro_batches_of, recomputed, short
from train.spec.communication.step import step_messages
from train.spec.config import CompileConfig, MemoryConfig, PrecisionConfig
from train.spec.mesh import Axes, axes

EXPERTS = replace(MODEL, experts=8, experts_per_token=2, shared_experts=1)
# A block has 656,000 numbers: queries, keys and values 3 · 256², their result 256², gate and up 2 · 512 · 256, down
# 256 · 512, and norms 2 · 256 + 2 · 64. Embedding and head have 1,024 · 256 = 262,144 each, the last norm 256. A micro-
# batch is two sequences, 131,072 bytes of stream. Two ranks that share 16 sequences take four of them each, four two.
TABLES: dict[str, tuple[dict[str, Any], int, int, str]] = {
    "copies": (
        {"dp_replicate": 2}, 2, 0,
        # fp32 of all 5,772,544 numbers: the embedding fills the first bucket. 8 · 8 + 3 weights as int32.
        """
        all_reduce      tokens        2   1048576    1  gradients  backward
        all_reduce      tokens        2  22041600    1  gradients  backward
        all_reduce      tokens        2       268    1  which weights were used  backward
        """,
    ),
    "shards, stage 3": (
        {"dp_shard": 2, "checkpointing": "full"}, 2, 0,
        """
        all_gather      fsdp          2   1312000   32  weights of block  forward
        all_gather      fsdp          2   1312000   32  weights of block  backward
        reduce_scatter  fsdp          2   2624000   32  gradients of block  backward
        all_gather      fsdp          2    524288    4  weights of head  forward
        reduce_scatter  fsdp          2   1048576    4  gradients of head  backward
        all_gather      fsdp          2    524288    4  weights of embedding  forward
        all_gather      fsdp          2    524288    4  weights of embedding  backward
        reduce_scatter  fsdp          2   1048576    4  gradients of embedding  backward
        all_gather      fsdp          2       512    4  weights of root  forward
        reduce_scatter  fsdp          2      1024    4  gradients of root  backward
        """,
    ),
    "shards, stage 2": (
        {"dp_shard": 2, "zero": 2}, 2, 0,
        """
        all_gather      fsdp          2   1312000    8  weights of block  forward
        reduce_scatter  fsdp          2   2624000   32  gradients of block  backward
        all_gather      fsdp          2    524288    1  weights of head  forward
        reduce_scatter  fsdp          2   1048576    4  gradients of head  backward
        all_gather      fsdp          2    524288    1  weights of embedding  forward
        reduce_scatter  fsdp          2   1048576    4  gradients of embedding  backward
        all_gather      fsdp          2       512    1  weights of root  forward
        reduce_scatter  fsdp          2      1024    4  gradients of root  backward
        """,
    ),
    "shards, stage 1": (
        {"dp_shard": 2, "zero": 1}, 2, 0,
        """
        all_gather      fsdp          2   1312000    8  weights of block  forward
        reduce_scatter  fsdp          2   2624000    8  gradients of block  backward
        all_gather      fsdp          2    524288    1  weights of head  forward
        reduce_scatter  fsdp          2   1048576    1  gradients of head  backward
        all_gather      fsdp          2    524288    1  weights of embedding  forward
        reduce_scatter  fsdp          2   1048576    1  gradients of embedding  backward
        all_gather      fsdp          2       512    1  weights of root  forward
        reduce_scatter  fsdp          2      1024    1  gradients of root  backward
        """,
    ),
    "shards of a tied model": (
        {"model": replace(MODEL, tied_embeddings=True), "dp_shard": 2}, 2, 0,
        # The root has the embedding and the last norm, and keeps them for the backward pass.
        """
        all_gather      fsdp          2   1312000   32  weights of block  forward
        all_gather      fsdp          2   1312000   32  weights of block  backward
        reduce_scatter  fsdp          2   2624000   32  gradients of block  backward
        all_gather      fsdp          2    524800    4  weights of root  forward
        reduce_scatter  fsdp          2   1049600    4  gradients of root  backward
        """,
    ),
    "copies of shards, in bf16": (
        {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "reduce": "bf16"}, 4, 0,
        """
        all_gather      fsdp          2   1312000    8  weights of block  forward
        reduce_scatter  fsdp          2   1312000   16  gradients of block  backward
        all_reduce      dp_replicate  2    656000   16  gradients of block  backward
        all_gather      fsdp          2    524288    1  weights of head  forward
        reduce_scatter  fsdp          2    524288    2  gradients of head  backward
        all_reduce      dp_replicate  2    262144    2  gradients of head  backward
        all_gather      fsdp          2    524288    1  weights of embedding  forward
        reduce_scatter  fsdp          2    524288    2  gradients of embedding  backward
        all_reduce      dp_replicate  2    262144    2  gradients of embedding  backward
        all_gather      fsdp          2       512    1  weights of root  forward
        reduce_scatter  fsdp          2       512    2  gradients of root  backward
        all_reduce      dp_replicate  2       256    2  gradients of root  backward
        """,
    ),
    "flat shards": (
        {"dp_shard": 2, "strategy": "fsdp1"}, 2, 0,
        """
        all_gather      fsdp          2   1312000   32  weights of block  forward
        all_gather      fsdp          2   1312000   32  weights of block  backward
        reduce_scatter  fsdp          2   2624000   32  gradients of block  backward
        all_gather      fsdp          2   1049088    4  weights of root  forward
        reduce_scatter  fsdp          2   2098176    4  gradients of root  backward
        """,
    ),
    "tensor parallelism": (
        {"tp": 2, "checkpointing": "every"}, 2, 0,
        # Eight micro-batches of eight blocks, of which every second one runs again; embedded tokens come in fp32; of
        # 256 tokens each rank says three numbers; norms have 8 · 640 + 256 in fp32.
        """
        all_gather      tp            2    131072  128  inputs of layers  forward
        reduce_scatter  tp            2    131072  128  outputs of layers  forward
        all_gather      tp            2    131072  128  gradients of outputs  backward
        reduce_scatter  tp            2    131072  128  gradients of inputs  backward
        all_gather      tp            2    131072   64  inputs of layers, recomputed  backward
        reduce_scatter  tp            2    131072   32  outputs of layers, recomputed  backward
        reduce_scatter  tp            2    262144    8  embedded tokens  forward
        all_gather      tp            2    262144    8  gradients of embedded tokens  backward
        all_gather      tp            2    131072    8  input of the head  forward
        reduce_scatter  tp            2    131072    8  gradient of the head's input  backward
        all_gather      tp            2      6144    8  statistics of logits  forward
        all_reduce      tp            2     21504    1  gradients of norms  update
        """,
    ),
    "shared sequences": (
        {"cp": 2, "zero": 1, "checkpointing": "full"}, 2, 0,
        # Keys and values of 256 tokens have 2 · 4 · 64 channels in bf16.
        """
        all_gather      fsdp          2   1312000    8  weights of block  forward
        reduce_scatter  fsdp          2   2624000    8  gradients of block  backward
        all_gather      fsdp          2    524288    1  weights of head  forward
        reduce_scatter  fsdp          2   1048576    1  gradients of head  backward
        all_gather      fsdp          2    524288    1  weights of embedding  forward
        reduce_scatter  fsdp          2   1048576    1  gradients of embedding  backward
        all_gather      fsdp          2       512    1  weights of root  forward
        reduce_scatter  fsdp          2      1024    1  gradients of root  backward
        all_gather      cp            2    262144   64  keys and values  forward
        all_gather      cp            2    262144   64  keys and values, recomputed  backward
        reduce_scatter  cp            2    262144   64  gradients of keys and values  backward
        """,
    ),
    "a pipeline's first rank": (
        {"pp": 2, "dp_shard": 2}, 4, 0,
        # Four blocks; weights are freed after each of four forward passes, gradients summed once a step.
        """
        all_gather      fsdp          2   1312000   16  weights of block  forward
        all_gather      fsdp          2   1312000    4  weights of block  backward
        reduce_scatter  fsdp          2   2624000    4  gradients of block  backward
        all_gather      fsdp          2    524288    4  weights of embedding  forward
        all_gather      fsdp          2    524288    1  weights of embedding  backward
        reduce_scatter  fsdp          2   1048576    1  gradients of embedding  backward
        send            pp            2    131072    4  residual stream  forward
        all_reduce      pp            2         8    1  loss  update
        """,
    ),
    "a pipeline's last rank": (
        {"pp": 2, "dp_shard": 2}, 4, 1,
        """
        all_gather      fsdp          2   1312000   16  weights of block  forward
        all_gather      fsdp          2   1312000    4  weights of block  backward
        reduce_scatter  fsdp          2   2624000    4  gradients of block  backward
        all_gather      fsdp          2    524288    1  weights of head  forward
        reduce_scatter  fsdp          2   1048576    1  gradients of head  backward
        all_gather      fsdp          2       512    1  weights of root  forward
        reduce_scatter  fsdp          2      1024    1  gradients of root  backward
        send            pp            2    131072    4  gradient of the stream  backward
        all_reduce      pp            2         8    1  loss  update
        """,
    ),
    "shared experts": (
        {"model": EXPERTS, "dp_shard": 4, "ep": 2, "zero": 1}, 4, 0,
        # Beside its experts a block has 658,048 numbers, with the router and the expert that all tokens go through; of
        # 8 · 3 · 256 · 512 in experts a rank has half. Two micro-batches of 256 tokens, each to two experts.
        """
        all_gather      fsdp          4   1316096    8  weights of block  forward
        reduce_scatter  fsdp          4   2632192    8  gradients of block  backward
        all_gather      expert_fsdp   2   3145728    8  weights of experts  forward
        reduce_scatter  expert_fsdp   2   6291456    8  gradients of experts  backward
        all_gather      fsdp          4    524288    1  weights of head  forward
        reduce_scatter  fsdp          4   1048576    1  gradients of head  backward
        all_gather      fsdp          4    524288    1  weights of embedding  forward
        reduce_scatter  fsdp          4   1048576    1  gradients of embedding  backward
        all_gather      fsdp          4       512    1  weights of root  forward
        reduce_scatter  fsdp          4      1024    1  gradients of root  backward
        all_to_all      ep            2    262144   16  tokens to experts  forward
        all_to_all      ep            2    262144   16  tokens from experts  forward
        all_to_all      ep            2    262144   16  tokens to experts, gradients  backward
        all_to_all      ep            2    262144   16  tokens from experts, gradients  backward
        all_to_all      ep            2        64   16  tokens of experts  forward
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", TABLES)
def test_what_a_rank_sends_in_a_step(layout: str) -> None:
    changes, ranks, rank, table = TABLES[layout]
    made = config(**changes)
    found = step_messages(made, axes(made.parallel, ranks), rank)
    rows = [
        (one.collective, one.axis, str(one.ranks), str(one.size), str(one.count), f"{one.of}  {one.phase}")
        for one in found
        if one.size != 8 or one.axis == "pp"
    ]
    assert rows == [tuple(line.split(maxsplit=5)) for line in table.strip().splitlines()]


@pytest.mark.parametrize(
    ("checkpointing", "every", "again"), [("none", 2, 0), ("selective", 2, 0), ("full", 2, 4), ("every", 3, 2)]
)
def test_blocks_that_run_again(checkpointing: str, every: int, again: int) -> None:
    """Of blocks 3 to 6 every third is 3 and 6."""
    made = replace(config(), memory=MemoryConfig(checkpointing=checkpointing, every=every))
    assert recomputed(made, Stage(1, 3, 7, first=False, last=True)) == again


@pytest.mark.parametrize(("schedule", "sizes"), [("1f1b", (8, 8)), ("interleaved", (4, 4, 4, 4))])
def test_without_a_size_every_stage_of_a_pipeline_has_a_micro_batch(schedule: str, sizes: tuple[int, ...]) -> None:
    """Two ranks with one stage or two each share 16 sequences."""
    made = config(pp=2, pp_schedule=schedule, micro_batch_sequences=None)
    assert micro_batches_of(made, axes(made.parallel, 2), "cuda").sizes == sizes


def test_compiled_micro_batches_are_of_one_shape() -> None:
    made = replace(config(micro_batch_sequences=3), compile=CompileConfig(blocks=True))
    assert micro_batches_of(made, Axes(), "cuda").sizes == (3,) * 6
    plain = replace(made, compile=CompileConfig(blocks=False))
    assert sum(micro_batches_of(plain, Axes(), "cuda").sizes) == 16


def test_ranks_that_share_sequences_add_up_which_experts_were_chosen() -> None:
    """Of each of two sequences 8 experts and one more count in four bytes, in 8 blocks that run twice, 8 times."""
    model = replace(EXPERTS, balance_weight=0.01)
    made = config(model, cp=2, checkpointing="full")
    found = [one for one in step_messages(made, axes(made.parallel, 2)) if one.of == "choices of experts"]
    assert [(one.axis, one.ranks, one.size, one.count, one.phase) for one in found] == [("cp", 2, 72, 128, "forward")]
    off = config(replace(model, balance_weight=0.0), cp=2)
    assert "choices of experts" not in {one.of for one in step_messages(off, axes(off.parallel, 2))}


def test_a_bucket_has_the_bytes_that_are_given() -> None:
    """The embedding's MiB is more than the first quarter; of each block qkv fills one, the result another, ..."""
    made = config(dp_replicate=2, ddp_bucket_mib=0.25)
    found = ddp_buckets(made)
    assert sum(found) == 4 * 5_772_544
    assert found[:3] == [1_048_576, 1024 + 786_432, 262_144]
    assert ddp_buckets(config(dp_replicate=2, ddp_bucket_mib=64)) == [4 * 5_772_544]


def test_numbers_that_ranks_add_up_once_a_step() -> None:
    made = config(dp_shard=2, cp=2, tp=2)
    found = [
        (one.axis, one.ranks, one.size, one.count, one.of, one.phase)
        for one in step_messages(made, axes(made.parallel, 8))
        if one.size == 8
    ]
    assert found == [
        ("tokens", 4, 8, 1, "tokens of the step", "forward"),
        ("tokens", 4, 8, 1, "loss", "update"),
        ("world", 8, 8, 1, "gradient norm", "update"),
    ]


def test_chunks_of_the_head_are_as_large_as_their_logits_may_be() -> None:
    """65,536 tokens of vocabulary on two ranks: 64 rows of fp32 are 8 MiB, 32,768 of bf16 2 GiB, in equal chunks."""
    made = config(tp=2)
    made = replace(made, data=replace(made.data, vocab_size=65536))
    two = Axes(tp=2)
    assert head_chunks(made, two, 200, "cpu") == [64, 64, 64, 8]
    assert head_chunks(made, two, 200, "cuda") == [200]
    assert head_chunks(made, two, 70_000, "cuda") == [23334, 23334, 23332]
    wide = replace(made, data=replace(made.data, vocab_size=2 * 1000 * 2**10))
    assert head_chunks(wide, two, 100, "cpu") == [64, 36]  # never fewer than 64 rows


def test_bytes_of_the_stream_by_precision() -> None:
    sizes = {name: short(replace(config(), precision=PrecisionConfig(name=name))) for name in PRECISIONS}
    assert sizes == PRECISIONS


PRECISIONS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
