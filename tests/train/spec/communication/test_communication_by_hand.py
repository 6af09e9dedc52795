"""Messages of small layouts by hand: what each rank sends to whom, how often, and how long it takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.train.spec.communication.small_model import LENGTH, MODEL, VOCABULARY, config
from train.spec.communication.costs import Link, Reach, hierarchical
from train.spec.communication.data_parallel import units
from train.spec.communication.experts import expert_parallel
from train.spec.communication.fit import LinkFit, line
from train.spec.communication.messages import ALL_REDUCE, SEND, Message
from train.spec.communication.stages import Stage, micro_batches_of, recomputed, stages
from train.spec.communication.step import step_messages
from train.spec.config import MemoryConfig, PrecisionConfig, RunConfig
from train.spec.mesh import axes

STREAM = 2 * LENGTH * 256 * 2
"""Bytes of the residual stream of two sequences in bf16."""


def sent(made: RunConfig, ranks: int, rank: int = 0) -> tuple[Message, ...]:
    return step_messages(made, axes(made.parallel, ranks), rank)


@pytest.mark.parametrize(
    ("schedule", "pp", "forward", "backward"),
    [("1f1b", 4, [8, 8, 8, 0], [0, 8, 8, 8]), ("zbv", 2, [8, 8], [8, 8])],
)
def test_neighbours_in_a_pipeline_send_each_micro_batch_once(
    schedule: str, pp: int, forward: list[int], backward: list[int]
) -> None:
    """With zbv the first rank has stages 0 and 3, the second 1 and 2: between these two nothing is sent."""
    made = config(pp=pp, pp_schedule=schedule)
    found: dict[str, list[int]] = {"forward": [], "backward": []}
    for rank in range(pp):
        streams = [one for one in sent(made, pp, rank) if one.collective == SEND]
        assert {one.size for one in streams} == {STREAM}
        for phase, counts in found.items():
            counts.append(sum(one.count for one in streams if one.phase == phase))
    assert (found["forward"], found["backward"]) == (forward, backward)


@pytest.mark.parametrize(
    ("tied", "schedule", "pp", "adding"),
    [(True, "1f1b", 4, {0, 3}), (False, "1f1b", 4, set()), (True, "zbv", 2, set())],
)
def test_both_ends_of_a_pipeline_add_up_a_tied_embedding(tied: bool, schedule: str, pp: int, adding: set[int]) -> None:
    """With zbv one rank has both ends, and its embedding once."""
    made = config(replace(MODEL, tied_embeddings=tied), pp=pp, pp_schedule=schedule)
    found = {rank: [one for one in sent(made, pp, rank) if one.axis == "ends"] for rank in range(pp)}
    assert {rank for rank, ends in found.items() if ends} == adding
    for rank in adding:
        ((collective, ranks, size, count),) = ((one.collective, one.ranks, one.size, one.count) for one in found[rank])
        assert (collective, ranks, size, count) == (ALL_REDUCE, 2, 4 * VOCABULARY * 256, 1)


def test_stages_begin_where_the_one_before_ends() -> None:
    made = config(pp=3, pp_schedule="1f1b", pp_layers=(3, 3, 2))
    shape = axes(made.parallel, 3)
    found = [(one.start, one.stop, one.first, one.last) for rank in range(3) for one in stages(made, shape, rank)]
    assert found == [(0, 3, True, False), (3, 6, False, False), (6, 8, False, True)]
    alone = config()
    (whole,) = stages(alone, axes(alone.parallel, 1), 0)
    assert (whole.start, whole.stop, whole.first, whole.last) == (0, 8, True, True)


def test_a_pipelines_passes_take_their_share_of_the_micro_batches() -> None:
    for given, passes in ((None, 1), (4, 2)):
        made = config(pp=4, pp_schedule="1f1b", pp_micro_batches=given)
        micro = micro_batches_of(made, axes(made.parallel, 4), "cuda")
        assert (micro.sizes, micro.passes) == ((2,) * 8, passes)


@pytest.mark.parametrize(("reduce", "times", "size"), [("fp32", 1, 4), ("bf16", 2, 2)])
def test_copies_of_shards_are_summed_once_a_step_in_fp32_and_after_each_micro_batch_in_bf16(
    reduce: str, times: int, size: int
) -> None:
    """Two copies of two shards: of 16 sequences each rank has four, in two micro-batches."""
    made = config(reduce=reduce, dp_replicate=2, dp_shard=2)
    (block,) = (one for one in sent(made, 4) if one.axis == "dp_replicate" and one.of == "gradients of block")
    # Norms of the stream and of heads, queries with keys and values, result, gate with up, down: all even.
    numbers = 2 * 256 + 2 * 64 + 3 * 256 * 256 + 256 * 256 + 3 * 256 * 512
    assert (block.collective, block.ranks, block.count) == (ALL_REDUCE, 2, times * MODEL.layers)
    assert block.size == size * numbers // 2


def test_experts_that_ranks_share_are_cut_apart_from_the_rest_of_their_block() -> None:
    model = replace(MODEL, experts=8, experts_per_token=2)
    for ep, apart in ((1, 0), (2, MODEL.layers)):
        made = config(model, dp_shard=4, ep=ep)
        shape = axes(made.parallel, 4)
        (stage,) = stages(made, shape, 0)
        found = units(made, shape, stage)
        assert sum(times for one, times in found.items() if one.axis == "expert_fsdp") == apart


def test_what_is_made_again_is_sent_to_experts_again() -> None:
    model = replace(MODEL, experts=8, experts_per_token=2)
    found = [one for one in sent(config(model, checkpointing="full", dp_shard=4, ep=2), 4) if one.axis == "ep"]
    counts = {phase: Counter({one.of: one.count for one in found if one.phase == phase}) for phase in PHASES}
    each = MODEL.layers * 2  # of 16 sequences each of four ranks has four, in two micro-batches
    forward = dict.fromkeys(("tokens to experts", "tokens from experts", "tokens of experts"), each)
    assert counts["forward"] == forward
    gradients = dict.fromkeys(("tokens to experts, gradients", "tokens from experts, gradients"), each)
    assert counts["backward"] == {f"{of}, recomputed": each for of in forward} | gradients


PHASES = ("forward", "backward")


def test_rows_to_experts_by_hand() -> None:
    found = list(expert_parallel(tokens=100, width=64, chosen=2, itemsize=2, ranks=4, layers=3, micro_batches=5))
    assert [(one.size, one.count) for one in found] == [(100 * 2 * 64 * 2, 15)] * 4


def test_trees_within_hosts_and_between_them() -> None:
    """Within hosts of 8 two trees of 3 hops scatter and gather; between 4 hosts one goes up and down with an eighth."""
    size = 1e6
    reaches = [Reach(8, Link(1e-6, 400e9)), Reach(4, Link(5e-6, 50e9))]
    within = 2 * (3 * 1e-6 + 7 / 8 * size / 400e9)
    between = 2 * 2 * 5e-6 + 2 * (size / 8) / 50e9
    assert hierarchical(ALL_REDUCE, size, reaches, "tree") == pytest.approx(within + between)


def test_a_line_does_not_begin_below_zero() -> None:
    """Times that rise by 1 a byte from -0.5 have no start; of the ratios 0.5, 0.75 and 0.833 the median counts."""
    start, slope = line([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert start == 0.0 and slope == pytest.approx(0.75, rel=1e-3)


def test_residuals_of_a_fit_by_their_middle_and_worst() -> None:
    link = Link(1e-6, 1e9)
    even, odd = LinkFit("all_gather", 2, link, (0.1, -0.3, 0.2, 0.4)), LinkFit("all_gather", 2, link, (0.1, -0.3, 0.2))
    assert even.median == pytest.approx(0.25) and even.worst == 0.4
    assert (odd.median, odd.worst) == (0.2, 0.3)


def test_experts_need_a_choice_ranks_and_room() -> None:
    good: dict[str, Any] = {"tokens": 1, "width": 1, "chosen": 1, "itemsize": 2, "ranks": 1, "layers": 1}
    assert len(list(expert_parallel(**good, micro_batches=1))) == 4
    for wrong in ({"chosen": 0}, {"ranks": 0}, {"capacity": 0.0}):
        with pytest.raises(ValueError, match="each has to be positive"):
            list(expert_parallel(**{**good, "micro_batches": 1, **wrong}))


def test_biases_of_experts_move_by_one_sum_a_step() -> None:
    model = replace(MODEL, experts=8, experts_per_token=2, router_bias_speed=1e-3)
    found = [one for one in sent(config(model, dp_shard=2), 2) if one.of == "tokens of experts"]
    ((size, ranks, count, phase),) = ((one.size, one.ranks, one.count, one.phase) for one in found)
    assert (size, ranks, count, phase) == (8 * 8 * MODEL.layers, 2, 1, "update")


def test_weights_that_are_gathered_in_fp8_find_their_largest_magnitudes_before() -> None:
    """Four matrices a block, in six of eight blocks, before each of four micro-batches; weights go as one byte each."""
    precision = PrecisionConfig(name="fp8", fp8_gather=True, fp8_keep_blocks=1)
    made = replace(config(dp_shard=2), precision=precision)
    found = sent(made, 2)
    ((size, count),) = ((one.size, one.count) for one in found if one.of == "largest magnitudes")
    assert (size, count) == (4 * 4 * 6, 4)
    matrices, norms = 3 * 256 * 256 + 256 * 256 + 3 * 256 * 512, 2 * 256 + 2 * 64
    gathered = Counter(
        {one.size: one.count for one in found if one.of == "weights of block" and one.phase == "forward"}
    )
    assert gathered == {2 * (matrices + norms): 2 * 4, matrices + 2 * norms: 6 * 4}


@pytest.mark.parametrize(("checkpointing", "count"), [("every", 3), ("full", 7), ("selective", 0), ("none", 0)])
def test_blocks_that_run_forward_again(checkpointing: str, count: int) -> None:
    """Of seven blocks, every third from the first: 0, 3 and 6."""
    made = RunConfig(memory=MemoryConfig(checkpointing=checkpointing, every=3))
    assert recomputed(made, Stage(0, 0, 7, first=True, last=True)) == count
    assert recomputed(made, Stage(1, 1, 3, first=False, last=False)) == {"full": 2}.get(checkpointing, 0)
