"""Sums and small tables of the accounting, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.spec.accounting import kept, outside
from train.spec.accounting.flops import recomputed
from train.spec.accounting.held import Numbers, Part, moments, part_of
from train.spec.accounting.inference import Frozen, frozen
from train.spec.accounting.kept import Head
from train.spec.accounting.planned import Experts, PlannedShape
from train.spec.accounting.planned import GroupedAttention as Grouped
from train.spec.communication.cluster import Fitted, Level
from train.spec.communication.costs import Link, seconds
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, SEND
from train.spec.config import (
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.counts import params
from train.spec.mesh import Axes


def test_a_part_adds_up_its_blocks_and_ends() -> None:
    block, embedding, head = Numbers(1, 10, 0, 0), Numbers(20, 200, 0, 0), Numbers(300, 3000, 0, 0)
    part = Part((4, 5, 6), True, True, block, embedding, head, Numbers(4000, 40000, 0, 0), sharded=True, ddp=False)
    assert (part.blocks, part.shard, part.gathered) == (3, 4323, 43230)
    assert part.largest_end == head
    assert replace(part, head=Numbers(0, 0, 0, 0)).largest_end == embedding


def test_a_frozen_model_is_its_weights_what_is_gathered_and_what_is_at_work() -> None:
    assert Frozen(weights=1, gathered=20, at_work=300).total == 321


@pytest.mark.parametrize(
    ("precision", "device", "tp", "gathered", "head"),
    [
        # 1,024 rows of 32, 100 tokens. Two bytes a number on a GPU, logits in the same; inputs and their gradient.
        ("bf16", "cuda", 1, False, Head(65536, 204800, 131072, 12800)),
        ("bf16", "cuda", 1, True, Head(0, 204800, 131072, 12800)),
        ("bf16", "cpu", 1, False, Head(65536, 409600, 131072, 12800)),
        ("fp32", "cuda", 1, False, Head(0, 409600, 131072, 25600)),
        # Half of the rows; the gradient of the input is cut in the end, of which another half is there.
        ("bf16", "cuda", 2, False, Head(32768, 102400, 65536, 16000)),
    ],
)
def test_a_heads_bytes(precision: str, device: str, tp: int, gathered: bool, head: Head) -> None:
    made = RunConfig(
        ModelConfig(width=32, layers=1, head_dim=8),
        DataConfig(vocab_size=1024, sequence_length=100),
        precision=PrecisionConfig(name=precision),
    )
    assert kept.head(made, Axes(tp=tp), device, 100, gathered) == head


def test_what_a_backward_pass_has_at_work_is_cut_by_tensor_parallelism() -> None:
    made = RunConfig(ModelConfig(width=64, layers=1, head_dim=16), DataConfig(vocab_size=1024, sequence_length=100))
    whole, half = (kept.at_work(made, Axes(tp=tp), "cuda", 100) for tp in (1, 2))
    assert whole == 2 * half > 0


@pytest.mark.parametrize(("name", "numbers"), [("adamw", 2.0), ("sgd", 1.0)])
@pytest.mark.parametrize(("state", "size"), [("fp32", 4), ("bf16", 2)])
def test_moments_are_as_many_numbers_as_the_rule_keeps(name: str, numbers: float, state: str, size: int) -> None:
    made = RunConfig(
        ModelConfig(width=64, layers=2, head_dim=16),
        DataConfig(vocab_size=1024, sequence_length=100),
        optim=OptimConfig(name=name),
        precision=PrecisionConfig(name="bf16", optimizer_state=state),
    )
    part = part_of(made, Axes(), 0)
    assert part.shard == params(made.model, 1024).total
    assert moments(made, part, 1, 1) == numbers * size * part.shard


def test_muon_keeps_one_moment_of_hidden_matrices() -> None:
    made = RunConfig(ModelConfig(width=64, layers=2, head_dim=16, mlp_width=128), DataConfig(vocab_size=1024))
    made = replace(made, optim=OptimConfig(name="muon"))
    hidden = 2 * (4 * 64**2 + 3 * 64 * 128)
    part = part_of(made, Axes(), 0)
    assert moments(made, part, 1, 1) == 4 * (2 * (part.shard - hidden) + hidden)


@pytest.mark.parametrize(
    ("device", "graph", "ranks", "count"),
    [("cpu", None, 1, 0), ("cuda", False, 1, 2), ("cuda", None, 1, 3), ("cuda", None, 2, 2)],
)
def test_workspaces_of_both_passes_and_of_a_recorded_step(
    device: str, graph: bool | None, ranks: int, count: int
) -> None:
    made = RunConfig(ModelConfig(), compile=CompileConfig(step_graph=graph))
    assert outside.workspaces(made, Axes(dp_shard=ranks), device) == count * 32 * 2**20


def test_two_ranks_as_a_tree_send_all_of_it_up_and_down() -> None:
    link = Link(1e-6, 1e9)
    assert seconds(ALL_REDUCE, 2, 1e6, link, "tree") == pytest.approx(2e-6 + 2e-3)
    assert seconds(ALL_REDUCE, 2, 1e6, link, "ring") == pytest.approx(2e-6 + 1e-3)
    assert seconds(ALL_REDUCE, 1, 1e6, link, "tree") == 0.0


def test_modules_that_predict_further_tokens_are_as_the_last_block() -> None:
    """Width 8, 10 tokens; attention 2 · 8 · (2 + 1) · 4 = 192 weights; a dense layer of 3 · 8 · 16 = 384, then one of 4
    experts, 3 · 8 · 6 = 144 each, of which a token goes through one, behind a router of 4 · 8 = 32."""
    shape = PlannedShape(
        layers=2, width=8, vocab_size=10, attention=Grouped(2, 1, 4), mlp_width=16,
        experts=Experts(count=4, active=1, width=6, dense_layers=1), predicted=1,
    )  # fmt: skip
    # Embedding and head 160, norms 8 + 2 · 16, blocks 192 + 384 and 192 + 32 + 4 · 144.
    assert shape.total == 160 + 40 + 576 + 800
    assert shape.active == shape.total - 3 * 144
    assert shape.matmul_active == shape.active - 40 - 80
    # Its own block 816, as the last, two widths taken together 2 · 8², three norms.
    assert shape.predicting == 816 + 128 + 24
    attention = 3 * 4 * 2 * 4 * 5
    plain = 6 * shape.matmul_active + 2 * attention
    assert replace(shape, predicted=0).training_flops(5) == plain
    # Of the module a token goes through 192 + 32 + 144, the two widths, the head again.
    assert shape.training_flops(5) == plain + 6 * (368 + 128 + 80) + attention
    assert replace(shape, predicted=2).training_flops(5) == plain + 2 * (6 * (368 + 128 + 80) + attention)


def test_trees_are_for_what_nccl_has_trees_for() -> None:
    level = Level("nvlink", 1e-6, 1e9, fitted=(Fitted(2e-6, 2e9, ALL_GATHER),))
    plain = Link(1e-6, 1e9)
    for collective in (ALL_REDUCE, BROADCAST):
        assert level.link(collective) == (plain, "best")
    for collective in (REDUCE_SCATTER, ALL_TO_ALL, SEND):
        assert level.link(collective) == (plain, "ring")
    assert level.link(ALL_GATHER) == (Link(2e-6, 2e9), "ring")


def test_what_keeps_all_products_makes_none_again() -> None:
    for checkpointing in ("none", "selective"):
        assert recomputed(ModelConfig(), 1024, MemoryConfig(checkpointing=checkpointing)) == 0


def test_a_frozen_models_work_is_cut_by_tensor_parallelism() -> None:
    made = RunConfig(ModelConfig(width=64, layers=1, head_dim=16), DataConfig(vocab_size=1024, sequence_length=100))
    whole, half = (frozen(made, Axes(tp=tp), 3) for tp in (1, 2))
    assert whole.at_work == 2 * half.at_work > 0
