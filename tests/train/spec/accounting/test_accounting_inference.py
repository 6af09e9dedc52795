"""Models that are not trained: weights, what is gathered, what is at work, and keys and values."""

from __future__ import annotations

from typing import Any

from train.spec.accounting import held, inference, kv_cache
from train.spec.config import BatchConfig, DataConfig, ModelConfig, ParallelConfig, PrecisionConfig, RunConfig
from train.spec.mesh import Axes

MODEL = ModelConfig(width=64, layers=4, head_dim=16, kv_heads=2, mlp_width=96)


def config(**parallel: Any) -> RunConfig:
    data = DataConfig(sequence_length=128, vocab_size=96)
    layout = ParallelConfig(**parallel)
    return RunConfig(MODEL, data, BatchConfig(tokens=8 * 128), precision=PrecisionConfig(name="bf16"), parallel=layout)


def test_whole_on_one_gpu() -> None:
    found = inference.frozen(config(), Axes(), 2)
    assert found.weights == 2 * held.part_of(config(), Axes(), 0).shard
    assert found.gathered == 0
    tokens = 2 * 128
    assert found.at_work == tokens * 2 * (4 * 96 + 2 * 64) + 2 * 96 * tokens, "a feed-forward layer, and the logits"
    assert found.total == found.weights + found.at_work


def test_sharded_weights_are_gathered_two_blocks_at_a_time() -> None:
    shards, axes = config(dp_replicate=1, dp_shard=4), Axes(dp_shard=4)
    part = held.part_of(shards, axes, 0)
    found = inference.frozen(shards, axes, 1)
    assert found.weights == 2 * part.shard
    assert found.gathered == 2 * 2 * part.block.gathered
    assert inference.frozen(config(dp_replicate=1, dp_shard=4, zero=2), axes, 1).gathered == 2 * part.gathered
    wide = RunConfig(MODEL, DataConfig(sequence_length=128, vocab_size=9600), BatchConfig(tokens=1024))
    of_wide = held.part_of(wide, axes, 0)
    assert inference.gathered(wide, of_wide) == of_wide.head.gathered, "the head is larger than two blocks"


def test_the_fullest_rank_of_a_pipeline_and_its_cache() -> None:
    pipeline, axes = config(pp=2), Axes(pp=2)
    parts = [held.part_of(pipeline, axes, rank) for rank in (0, 1)]
    assert inference.frozen(pipeline, axes, 1).weights == 2 * max(part.shard for part in parts)
    assert inference.cache(pipeline, axes, 3) == 2 * 2 * 2 * 16 * 2 * 3 * 128
    assert inference.cache(config(tp=2), Axes(tp=2), 1) == 2 * 4 * 16 * 2 * 128


def test_a_cache_is_cut_by_heads_and_layers_rounded_up() -> None:
    """Of 5 layers on two ranks one has 3, of 3 heads on two ranks one has 2: keys and values of 200 tokens in bf16."""
    model = ModelConfig(width=768, layers=5, head_dim=64, kv_heads=3)
    assert kv_cache.of_sequences(model, 2, 100, tp=2, pp=2) == 2 * 3 * 2 * 64 * 2 * 200
