"""Bounds of memory and time by hand where little else is at work, and what a search leaves out or takes, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from study.config.schema import ClusterConfig
from study.planning.parallel import auto
from study.planning.parallel.pace import Pace
from study.planning.parallel.question import Question
from study.planning.parallel.room import Room
from study.planning.parallel.search import least_memory
from study.planning.parallel.space import POLICIES, Candidate, Layout, refusal, space
from tests.study.planning.parallel.questions import CPU, MODEL, question
from train.spec.accounting import kept, outside
from train.spec.config import (
    BatchConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
    ScheduleConfig,
    SpikesConfig,
)
from train.spec.mesh import Axes, axes, share_of_batch
from train.spec.step_time import step_time

WIDE = ModelConfig(width=1024, layers=8, head_dim=64, kv_heads=4, mlp_width=2816, qk_norm=False)
NUMBERS = 8 * (1024 * (1024 + 512) + 1024 * 1024 + 3 * 1024 * 2816 + 2 * 1024) + 1024 + 2 * 8192 * 1024
"""Of WIDE: eight blocks, the last norm, embedding and head of 8,192 entries."""
SHORT: dict[str, Any] = {
    "model": WIDE,
    "data": DataConfig(sequence_length=2, vocab_size=8192),
    "batch": BatchConfig(tokens=64 * 2),
}
"""Steps of 128 tokens, whose activations are nothing beside the weights."""


def laid_out(asked: Question, sequences: int, parallel: dict[str, Any], **sections: Any) -> Candidate:
    """Return a candidate of a question as it is said, whatever a search would look at."""
    given: dict[str, Any] = {"dp_replicate": 1, "dp_shard": 1, **parallel}
    config = replace(asked.config, parallel=replace(ParallelConfig(), **given), **sections)
    there = axes(config.parallel, asked.gpus)
    return Candidate(0, Layout(config, there, share_of_batch(config, there)), sequences)


def bound(gpus: int, sequences: int, parallel: dict[str, Any] | None = None, offload: str = "none") -> float:
    """Return the least memory of WIDE in bytes for each of its numbers, without what lies beside tensors."""
    asked = question(f"gpus={gpus}", "precision=bf16", **SHORT)
    memory = replace(asked.config.memory, offload=offload)
    asked = replace(asked, config=replace(asked.config, memory=memory))
    one = laid_out(asked, sequences, parallel or {})
    sharded = one.axes.dp_shard > 1
    beside = outside.CONTEXT + outside.nccl(outside.communicators(one.axes, sharded), "cuda")
    fragments = 1.08 if sharded else 1.01
    return (Room(asked).memory(one) - beside) / fragments / NUMBERS


@pytest.mark.parametrize(
    ("gpus", "sequences", "parallel", "offload", "each"),
    [
        (1, 64, {}, "none", 4 + 8 + 4),  # weights, moments, gradients
        (1, 1, {}, "none", 16),
        (1, 64, {}, "optimizer", 4 + 4),
        (1, 64, {}, "parameters", 0.2),  # activations alone: 64 sequences of two tokens
        (2, 32, {"dp_replicate": 2}, "none", 16),
        (2, 32, {"dp_shard": 2, "zero": 3}, "none", 16 / 2),
        (2, 1, {"dp_shard": 2, "zero": 3}, "none", 16 / 2),
        (2, 32, {"dp_shard": 2, "zero": 2}, "none", 12 / 2 + 2),  # the gathered weights, in bf16, before gradients
        (2, 1, {"dp_shard": 2, "zero": 2}, "none", 12 / 2 + 2 + 4 / 2),
        (4, 16, {"dp_shard": 4, "zero": 3}, "none", 16 / 4),
        (2, 64, {"tp": 2}, "none", 16 / 2),
    ],
)
def test_states_that_each_gpu_has_to_hold(
    gpus: int, sequences: int, parallel: dict[str, Any], offload: str, each: float
) -> None:
    assert bound(gpus, sequences, parallel, offload) == pytest.approx(each, rel=0.02, abs=0.15)


LONG: dict[str, Any] = {
    "model": replace(MODEL, width=128, head_dim=32, kv_heads=2, mlp_width=256),
    "data": DataConfig(sequence_length=1024, vocab_size=512),
    "batch": BatchConfig(tokens=64 * 1024),
}
"""Steps of 65,536 tokens through a small model, beside whose activations weights are nothing."""


def busy(checkpointing: str, sequences: int, gpus: int = 1, **parallel: Any) -> tuple[float, float]:
    """Return the least memory, and what one block keeps of a micro-batch [bytes]."""
    asked = question(f"gpus={gpus}", "precision=bf16", **LONG)
    one = laid_out(asked, sequences, parallel, memory=MemoryConfig(checkpointing=checkpointing, every=4))
    mode = {"every": "full"}.get(checkpointing, checkpointing)
    block = sequences * 1024 * kept.block(one.layout.config, "cuda", mode, 1).on(one.axes)
    beside = outside.CONTEXT + outside.nccl(outside.communicators(one.axes, False), "cuda")
    return (Room(asked).memory(one) - beside) / 1.01, block


@pytest.mark.parametrize("sequences", [4, 16, 64])
def test_activations_that_a_gpu_has_to_hold(sequences: int) -> None:
    states = 16 * 8 * 128 * 1024
    for checkpointing in ("none", "selective", "full"):
        least, block = busy(checkpointing, sequences)
        assert least == pytest.approx(8 * block, abs=16 * states), checkpointing
    none, full = busy("none", sequences)[1], busy("full", sequences)[1]
    assert busy("every", sequences)[0] == pytest.approx(2 * full + 6 * none, abs=16 * states), "two of eight"
    assert none > 4 * full


def test_a_pipelines_first_rank_holds_as_many_micro_batches_as_there_are_ranks() -> None:
    states = 16 * 8 * 128 * 1024
    for schedule, waiting in (("1f1b", 2), ("gpipe", 4)):
        least, block = busy("none", 16, 2, pp=2, pp_schedule=schedule)
        assert least == pytest.approx(waiting * 4 * block, abs=16 * states), schedule


@pytest.mark.parametrize(
    ("words", "sections"),
    [
        ((), {}),
        (("precision=fp8",), {}),
        (("precision=fp32",), {}),
        (("precision=bf16", "memory.checkpointing=none"), {"data": DataConfig(sequence_length=512, vocab_size=8192)}),
    ],
)
def test_without_messages_the_bound_is_the_time(words: tuple[str, ...], sections: dict[str, Any]) -> None:
    asked = question("gpus=1", *words, **sections)
    pace = Pace(asked)
    for checkpointing in POLICIES:
        for compiled in (True, False):
            one = laid_out(asked, 16, {}, memory=MemoryConfig(checkpointing=checkpointing),
                           compile=CompileConfig(blocks=compiled))  # fmt: skip
            exact = step_time(one.config, one.axes, asked.profile).seconds
            assert 0.9 * exact <= pace.seconds(one) <= exact * (1 + 1e-9), (checkpointing, compiled)


@pytest.mark.parametrize(
    ("gpus", "parallel", "least"),
    [
        (2, {"dp_replicate": 2}, 0.93),
        (2, {"dp_shard": 2, "zero": 3}, 0.93),
        (2, {"dp_shard": 2, "zero": 2}, 0.93),
        (2, {"tp": 2}, 0.93),
        (2, {"pp": 2, "pp_schedule": "1f1b"}, 0.9),
        (4, {"pp": 4, "pp_schedule": "gpipe"}, 0.9),
        (4, {"pp": 2, "dp_shard": 2, "zero": 2, "pp_schedule": "1f1b"}, 0.9),
        (8, {"dp_shard": 8, "zero": 3}, 0.9),
    ],
)
def test_bounds_with_messages_are_near_the_time(gpus: int, parallel: dict[str, Any], least: float) -> None:
    asked = question(f"gpus={gpus}", "precision=bf16", model=replace(MODEL, width=2048, mlp_width=5632))
    pace = Pace(asked)
    for sequences in (1, 2, 4):
        one = laid_out(asked, sequences, parallel, compile=CompileConfig(blocks=True))
        exact = step_time(one.config, one.axes, asked.profile).seconds
        assert least * exact <= pace.closer(one) <= exact * (1 + 1e-9), sequences
        assert pace.seconds(one) <= pace.closer(one) * (1 + 1e-9)


def test_processes_without_gpus_launch_what_they_compute_besides() -> None:
    asked = question(f"cluster={CPU}", "gpus=1")
    one = laid_out(asked, 8, {})
    exact = step_time(one.config, one.axes, asked.profile).seconds
    assert 0.95 * exact <= Pace(asked).seconds(one) <= exact * (1 + 1e-9)


def settings(asked: Question) -> set[tuple[Any, ...]]:
    found = space(asked).candidates
    return {(c.config.parallel.zero, c.config.parallel.pp_schedule, c.config.parallel.pp_stages) for c in found}


def test_stages_of_zero_are_tried_where_weights_are_cut() -> None:
    fixed = ("parallel.tp=1", "parallel.cp=1", "parallel.ep=1", "precision=bf16", "memory.checkpointing=none")
    shards = question("gpus=4", "parallel.dp_shard=4", "parallel.dp_replicate=1", "parallel.pp=1", *fixed)
    assert {zero for zero, _, _ in settings(shards)} == {3, 2, 1}
    piped = question("gpus=4", "parallel.dp_shard=2", "parallel.dp_replicate=1", "parallel.pp=2", *fixed)
    assert {zero for zero, _, _ in settings(piped)} == {3, 2}
    alone = question("gpus=4", "parallel.dp_shard=1", "parallel.dp_replicate=4", "parallel.pp=1", *fixed)
    assert {zero for zero, _, _ in settings(alone)} == {3}
    stages = {(name, count) for _, name, count in settings(piped)}
    assert {("interleaved", 2), ("interleaved", 4)} <= stages and ("1f1b", 1) in stages
    assert all(count in (2, 4) for name, count in stages if name == "interleaved")
    two = question("gpus=2", "parallel.pp=2", "parallel.pp_schedule=interleaved", "parallel.pp_stages=4", *fixed)
    assert {(name, count) for _, name, count in settings(two)} == {("interleaved", 4)}


def test_blocks_are_compiled_where_they_can_be_and_tried_plain_where_not() -> None:
    both = space(question("gpus=2", "precision=bf16", "memory.checkpointing=none")).candidates
    assert {one.config.compile.blocks for one in both} >= {True}
    zero_bubble = [one for one in both if one.config.parallel.pp_schedule in ("zb1p", "zbv") and one.axes.pp > 1]
    assert all(one.config.compile.blocks is False for one in zero_bubble)


def test_micro_batches_are_even_parts_unless_one_is_given() -> None:
    asked = question("gpus=1", "precision=bf16", "memory.checkpointing=none", batch=BatchConfig(tokens=50 * 1024))
    assert sorted({one.sequences for one in space(asked).candidates}) == [1, 2, 4, 8, 13, 25, 50]
    counts = {one.sequences: one.accumulated for one in space(asked).candidates}
    assert counts == {1: 50, 2: 25, 4: 13, 8: 7, 13: 4, 25: 2, 50: 1}
    given = question("gpus=1", "parallel.micro_batch_sequences=6", "precision=bf16", "memory.checkpointing=none")
    assert {one.sequences for one in space(given).candidates} == {6}


def test_what_the_trainer_takes_is_refused_for_no_reason() -> None:
    asked = question("gpus=1")
    assert refusal(asked.config, 1) == ""
    assert refusal(replace(asked.config, parallel=replace(ParallelConfig(), tp=3, dp_shard=1)), 3) != ""


def test_the_least_memory_is_found_in_the_order_of_bounds() -> None:
    found = [Candidate(n, None, n) for n in range(5)]  # type: ignore[arg-type]
    least, exact = [10, 30, 20, 40, 50], [60, 31, 45, 41, 51]
    looked: list[int] = []

    def needed(one: Candidate) -> int:
        looked.append(one.number)
        return exact[one.number]

    def ask(enough: int | None = None) -> tuple[int, int, list[int]]:
        looked.clear()
        best = least_memory(found, lambda one: least[one.number], needed, enough)
        assert best is not None
        return best[0].number, best[1], list(looked)

    assert ask() == (1, 31, [0, 2, 1]), "40 is above 31: no other can need less"
    assert ask(enough=45) == (2, 45, [0, 2]) and ask(enough=60) == (0, 60, [0]) and ask(enough=44) == (1, 31, [0, 2, 1])
    least[3] = 31
    assert ask() == (1, 31, [0, 2, 1]), "one that needs as much is no better"
    looked.clear()
    assert least_memory(found, lambda one: least[one.number], needed, 9) is None and not looked, (
        "none can need so little"
    )
    assert least_memory([], lambda one: 0, needed) is None


def test_learning_changes_no_layout() -> None:
    run: RunConfig = question("gpus=1").config
    alike = auto._alike(run)
    assert run.batch.tokens is not None
    other = replace(
        run,
        seed=7,
        optim=replace(run.optim, lr=0.5, lr_scale=2.0, embedding_lr_scale=3.0, head_lr_scale=4.0, norm_lr_scale=5.0,
                      weight_decay=0.3, head_decay=0.2, embedding_decay=0.1, norm_decay=0.05, beta1=0.5, beta2=0.6),
        schedule=ScheduleConfig(name="constant"),
        spikes=SpikesConfig(threshold=9.0),
        budget=replace(run.budget, tokens=10 * run.batch.tokens),
    )  # fmt: skip
    assert auto._alike(other) == alike and auto._alike(alike) == alike
    assert alike.budget.tokens == 1000 * run.batch.tokens and alike.spikes.threshold == 0.0 and alike.seed == 0
    assert (alike.optim.lr, alike.optim.beta1, alike.optim.beta2) == (1e-3, 0.9, 0.95)
    optim = alike.optim
    assert optim.lr_scale == optim.embedding_lr_scale == optim.head_lr_scale == optim.norm_lr_scale == 1.0
    assert optim.weight_decay == optim.head_decay == optim.embedding_decay == optim.norm_decay == 0.0
    wider = replace(run, model=replace(run.model, width=512))
    assert auto._alike(wider) != alike


@pytest.mark.parametrize(
    ("cluster", "tasks"),
    [
        (ClusterConfig(executor="slurm", gpus_per_node=4), 4),
        (ClusterConfig(executor="slurm", gpus_per_node=1), 1),
        (ClusterConfig(executor="slurm", gpus_per_node=4, tasks_per_node=4), 4),
        (ClusterConfig(executor="slurm", gpus_per_node=0, tasks_per_node=3), 3),
        (ClusterConfig(executor="slurm", gpus_per_node=4, auto=("gpus",), tasks_per_node=2), 2),
        (ClusterConfig(executor="local", gpus_per_node=4, tasks_per_node=2), 2),
    ],
)
def test_a_rank_has_one_gpu_where_jobs_are_given_any(cluster: ClusterConfig, tasks: int) -> None:
    assert auto.with_ranks(cluster).tasks_per_node == tasks


def test_another_number_of_ranks_than_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cluster\.tasks_per_node=2 with parallel=auto: .* cluster\.gpus_per_node=4"):
        auto.with_ranks(ClusterConfig(executor="slurm", gpus_per_node=4, tasks_per_node=2))
    with pytest.raises(ValueError, match=r"cluster\.tasks_per_node=2"):
        auto.with_ranks(ClusterConfig(executor="slurm", gpus_per_node=1, tasks_per_node=2))


def test_one_gpu_has_one_mesh() -> None:
    assert {one.axes for one in space(question("gpus=1")).candidates} == {Axes()}


@pytest.mark.parametrize(
    "asked",
    [
        question("gpus=2", "precision=bf16", model=replace(MODEL, experts=4, mlp_width=704)),
        question("gpus=4", "parallel.tp=1", "parallel.cp=1", "memory.checkpointing=full"),
        question("gpus=4", "parallel.dp_replicate=1", "memory.checkpointing=none", model=replace(MODEL, window=128)),
    ],
    ids=["experts", "formats and pipelines", "windows"],
)
def test_bounds_do_not_depend_on_what_was_asked_before(asked: Question) -> None:
    """What is kept from one candidate to the next is kept by all that it depends on."""
    found = space(asked).candidates
    step = max(1, len(found) // 60)
    pace, room = Pace(asked), Room(asked)
    for one in found[::step]:
        assert (room.memory(one), pace.seconds(one), pace.closer(one)) == (
            Room(asked).memory(one), Pace(asked).seconds(one), Pace(asked).closer(one),
        )  # fmt: skip
