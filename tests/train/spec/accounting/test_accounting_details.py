"""What the accounting says in single cases: a pipeline's order where there is none, experts that all tokens share."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.train.spec.accounting.test_accounting_step import LENGTH, parts, run
from train.spec import activations
from train.spec.accounting import kept
from train.spec.accounting.planned import LatentAttention, PlannedShape
from train.spec.accounting.step import sheet
from train.spec.config import ModelConfig, ParallelConfig, RunConfig
from train.spec.mesh import Axes


def test_the_embeddings_backward_pass_begins_when_all_blocks_are_through() -> None:
    config = run(parallel=ParallelConfig(micro_batch_sequences=4, dp_replicate=1, dp_shard=2))
    found = sheet(config, Axes(dp_shard=2), "cuda", 4)
    assert "activations" not in parts(found, "backward of the embedding")
    assert "activations" in parts(found, "backward of block 1")


@pytest.mark.parametrize("schedule", ["gpipe", "zbv"])
def test_no_heads_gradients_wait_without_a_pipeline(schedule: str) -> None:
    named, plain = (
        sheet(run(tokens=8 * LENGTH, parallel=layout), Axes(), "cuda", 1)
        for layout in (
            ParallelConfig(micro_batch_sequences=1, pp_schedule=schedule),
            ParallelConfig(micro_batch_sequences=1),
        )
    )
    assert named == plain and "head" not in parts(named, "backward of block")


def test_experts_that_all_tokens_share_are_a_dense_layer_beside_the_others() -> None:
    """Two experts of 64 that are shared are one layer of 128."""
    model = ModelConfig(width=32, layers=1, head_dim=8, mlp_width=64, experts=4, experts_per_token=2)
    bare = activations._feed_forward(RunConfig(model), 2, False)
    shared = activations._feed_forward(RunConfig(ModelConfig(**{**vars(model), "shared_experts": 2})), 2, False)
    dense = activations._dense(RunConfig(model), 128, 2, False)
    for one in fields(dense):
        assert getattr(shared, one.name) == getattr(bare, one.name) + getattr(dense, one.name), one.name
    assert shared.products > bare.products


def test_a_latent_attention_has_norms_of_its_own() -> None:
    """By hand: 2 x 10 x 8 + 8 of the ends, 2 x 8 + 4 + 5 of norms, 40 + 50 of queries, 48 + 48 of keys and values, 48
    of the output, 3 x 8 x 16 of the feed-forward layer."""
    latent = LatentAttention(2, kv_rank=4, nope_dim=3, rope_dim=2, value_dim=3, query_rank=5)
    shape = PlannedShape(8, 1, 10, latent, mlp_width=16)
    assert shape.total == 168 + 25 + 90 + 96 + 48 + 384
    assert shape.matmul_active == shape.total - 25 - 8 - 80


@pytest.mark.parametrize(
    ("mode", "normed", "excess"),
    [("none", True, 4 * (8 - 2)), ("none", False, 0), ("full", True, 0), ("full", False, 0)],
)
def test_a_cpus_norms_of_heads_keep_one_statistic_less_where_nothing_is_made_again(
    mode: str, normed: bool, excess: int
) -> None:
    model = ModelConfig(width=64, layers=1, head_dim=8, kv_heads=2, qk_norm=normed)
    assert kept._excess(RunConfig(model), "cpu", mode, 1) == excess
    assert kept._excess(RunConfig(model), "cuda", mode, 1) == 0
