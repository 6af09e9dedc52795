"""How near bounds are to what the models say, and that a question's answers do not depend on what was asked before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from study.planning.parallel.answer import needed
from study.planning.parallel.pace import Pace, _count, _size
from study.planning.parallel.question import Question
from study.planning.parallel.room import Room
from study.planning.parallel.space import Candidate, Layout
from tests.study.planning.parallel.questions import CPU, MODEL, question
from tests.study.planning.parallel.test_planning_parallel_by_hand import laid_out
from train.spec.config import CompileConfig, DataConfig, MemoryConfig, ParallelConfig, PrecisionConfig, RunConfig
from train.spec.mesh import Axes
from train.spec.step_time import step_time

WIDE = replace(MODEL, width=2048, mlp_width=5632)
NARROW = replace(MODEL, width=256, head_dim=64, kv_heads=4, mlp_width=512)
WINDOWS = replace(WIDE, window=128, global_every=4)
EXPERTS = replace(WIDE, mlp_width=1408, experts=8, shared_experts=1)
PLAIN, COMPILED = CompileConfig(blocks=False), CompileConfig(blocks=True)
"""Models: wide ones are busy with products, narrow ones with launches."""


def case(
    *,
    gpus: int,
    sequences: int,
    parallel: dict[str, Any] | None = None,
    words: tuple[str, ...] = ("precision=bf16",),
    compile: CompileConfig = COMPILED,
    memory: MemoryConfig | None = None,
    model: Any = WIDE,
    **sections: Any,
) -> tuple[Question, Candidate]:
    """Return a question with one candidate as it is said."""
    asked = question(f"gpus={gpus}", *words, model=model, **sections)
    if memory is not None:
        asked = replace(asked, config=replace(asked.config, memory=memory))
    return asked, laid_out(asked, sequences, parallel or {}, compile=compile)


KEPT = PrecisionConfig(name="fp8", fp8_keep_blocks=2)
FP8 = ("precision=fp8",)
CASES: dict[str, dict[str, Any]] = {
    "alone": {"gpus": 1, "sequences": 64},
    "alone, made again": {"gpus": 1, "sequences": 64, "memory": MemoryConfig(checkpointing="full")},
    "alone, every other": {"gpus": 1, "sequences": 64, "memory": MemoryConfig(checkpointing="every", every=3)},
    "alone, a budget": {"gpus": 1, "sequences": 64, "memory": MemoryConfig(checkpointing="budget", budget_gib=8.0)},
    "alone, small parts": {"gpus": 1, "sequences": 5, "compile": PLAIN},
    "alone, fp8": {"gpus": 1, "sequences": 64, "words": FP8},
    "alone, fp8, narrow": {"gpus": 1, "sequences": 64, "words": FP8, "model": NARROW},
    "some blocks in bf16": {"gpus": 1, "sequences": 64, "words": FP8, "precision": KEPT},
    "some narrow blocks in bf16": {
        "gpus": 1, "sequences": 64, "words": FP8, "model": NARROW, "precision": KEPT, "compile": PLAIN,
    },
    "windows": {"gpus": 1, "sequences": 64, "model": WINDOWS},
    "windows, shards": {"gpus": 2, "sequences": 16, "parallel": {"dp_shard": 2, "zero": 3}, "model": WINDOWS},
    "graphs": {"gpus": 2, "sequences": 8, "parallel": {"dp_replicate": 2}, "model": NARROW,
               "compile": CompileConfig(blocks=True, cuda_graphs=True)},
    "launches": {"gpus": 2, "sequences": 1, "parallel": {"dp_replicate": 2}, "model": NARROW},
    "copies": {"gpus": 2, "sequences": 16, "parallel": {"dp_replicate": 2}},
    "shards": {"gpus": 4, "sequences": 16, "parallel": {"dp_shard": 4, "zero": 3}},
    "shards, stage 2": {"gpus": 4, "sequences": 4, "parallel": {"dp_shard": 4, "zero": 2}},
    "shards, stage 1": {"gpus": 4, "sequences": 4, "parallel": {"dp_shard": 4, "zero": 1}},
    "shards made again": {"gpus": 4, "sequences": 16, "parallel": {"dp_shard": 4, "zero": 3},
                          "memory": MemoryConfig(checkpointing="full")},
    "tensors": {"gpus": 4, "sequences": 64, "parallel": {"tp": 4}},
    "tensors made again": {"gpus": 2, "sequences": 64, "parallel": {"tp": 2},
                           "memory": MemoryConfig(checkpointing="full")},
    "contexts": {"gpus": 2, "sequences": 64, "parallel": {"cp": 2}},
    "experts": {"gpus": 4, "sequences": 16, "parallel": {"dp_shard": 4, "ep": 4, "zero": 3}, "model": EXPERTS},
    "1f1b": {"gpus": 2, "sequences": 16, "parallel": {"pp": 2, "pp_schedule": "1f1b", "pp_stages": 1}},
    "gpipe": {"gpus": 4, "sequences": 16, "parallel": {"pp": 4, "pp_schedule": "gpipe", "pp_stages": 1}},
    "interleaved": {"gpus": 2, "sequences": 16, "parallel": {"pp": 2, "pp_schedule": "interleaved", "pp_stages": 2}},
    "zero bubble": {"gpus": 2, "sequences": 16, "parallel": {"pp": 2, "pp_schedule": "zb1p", "pp_stages": 1},
                    "compile": PLAIN},
    "zero bubble of a v": {"gpus": 2, "sequences": 16, "parallel": {"pp": 2, "pp_schedule": "zbv", "pp_stages": 2},
                           "compile": PLAIN},
    "pipeline of tensors": {"gpus": 4, "sequences": 16,
                            "parallel": {"pp": 2, "tp": 2, "pp_schedule": "1f1b", "pp_stages": 1}},
    "pipeline of shards": {"gpus": 4, "sequences": 8,
                           "parallel": {"pp": 2, "dp_shard": 2, "zero": 2, "pp_schedule": "1f1b", "pp_stages": 1}},
    "passes of a pipeline": {"gpus": 2, "sequences": 4,
                             "parallel": {"pp": 2, "pp_schedule": "1f1b", "pp_stages": 1, "pp_micro_batches": 4}},
    "optimizer in host memory": {"gpus": 1, "sequences": 8, "memory": MemoryConfig(offload="optimizer")},

    "processes without GPUs": {"gpus": 2, "sequences": 8, "parallel": {"dp_replicate": 2}, "words": (f"cluster={CPU}",),
                               "compile": PLAIN},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first", "closer", "memory"),
    [
        ("alone", 1.0, 1.0, 0.8812),
        ("alone, made again", 0.9997, 0.9997, 0.5138),
        ("alone, every other", 0.9998, 0.9998, 0.8461),
        ("alone, a budget", 0.7616, 0.7616, 0.5149),
        ("alone, small parts", 0.7884, 0.7884, 0.8825),
        ("alone, fp8", 1.0, 1.0, 0.8946),
        ("alone, fp8, narrow", 1.0, 1.0, 0.8052),
        ("some blocks in bf16", 0.8270, 0.8270, 0.8946),
        ("some narrow blocks in bf16", 0.9535, 0.9535, 0.8052),
        ("windows", 0.9870, 0.9870, 0.8812),
        ("windows, shards", 0.8732, 0.9804, 0.9021),
        ("graphs", 0.8513, 0.8640, 0.9044),
        ("launches", 1.0, 1.0, 0.9413),
        ("copies", 0.9472, 0.9879, 0.8897),
        ("shards", 0.8610, 0.9957, 0.8837),
        ("shards, stage 2", 1.0, 1.0, 0.9282),
        ("shards, stage 1", 1.0, 1.0, 0.7418),
        ("shards made again", 0.8890, 0.9950, 0.5970),
        ("tensors", 0.9661, 0.9969, 0.9143),
        ("tensors made again", 0.9862, 0.9977, 0.5513),
        ("contexts", 0.9434, 0.9976, 0.8943),
        ("experts", 0.9322, 0.9901, 0.9091),
        ("1f1b", 0.9272, 0.9843, 0.8474),
        ("gpipe", 0.8944, 0.9878, 0.7910),
        ("interleaved", 0.9119, 0.9819, 0.7873),
        ("zero bubble", 0.9196, 0.9837, 0.8351),
        ("zero bubble of a v", 0.9807, 0.9808, 0.7758),
        ("pipeline of tensors", 0.9237, 0.9843, 0.8717),
        ("pipeline of shards", 0.8854, 0.9722, 0.8215),
        ("passes of a pipeline", 0.9539, 0.9539, 0.8375),
        ("optimizer in host memory", 0.9729, 0.9729, 0.8467),
        ("processes without GPUs", 0.9989, 0.9996, 0.9387),
    ],
)
def test_bounds_are_near_to_what_the_models_say(name: str, first: float, closer: float, memory: float) -> None:
    asked, one = case(**CASES[name])
    exact, pace = step_time(one.config, one.axes, asked.profile).seconds, Pace(asked)
    digits = 1e-9
    assert first - digits <= pace.seconds(one) / exact <= 1 + digits
    assert closer - digits <= pace.closer(one) / exact <= 1 + digits
    assert memory <= Room(asked).memory(one) / needed(one) <= 1


def test_what_lies_in_host_memory_is_not_counted() -> None:
    asked, one = case(gpus=1, sequences=8, memory=MemoryConfig(offload="parameters"))
    assert 0.45 <= Room(asked).memory(one) / needed(one) <= 1
    there = Room(replace(asked, config=replace(asked.config, memory=MemoryConfig())))
    assert there.memory(one) - Room(asked).memory(one) > 12 * 300e6, "weights and moments of 300 million and more"


def candidate(share: int, sequences: int, *, pp: int = 1, compiled: bool = True, **parallel: Any) -> Candidate:
    config = RunConfig(parallel=ParallelConfig(pp=pp, **parallel), compile=CompileConfig(blocks=compiled))
    return Candidate(0, Layout(config, Axes(pp=pp), share), sequences)


@pytest.mark.parametrize(
    ("share", "sequences", "compiled", "size", "count"),
    [
        (64, 16, True, 16, 4),
        (64, 64, True, 64, 1),
        (64, 100, True, 64, 1),
        (50, 16, True, 13, 4),  # 13 + 13 + 13 + 11 when compiled, whose blocks have one shape
        (50, 16, False, 12, 4),  # 13 + 13 + 12 + 12
        (7, 2, False, 1, 4),
        (7, 2, True, 2, 4),
        (1, 1, True, 1, 1),
    ],
)
def test_micro_batches_of_one_stage(share: int, sequences: int, compiled: bool, size: int, count: int) -> None:
    one = candidate(share, sequences, compiled=compiled)
    assert (_size(one), _count(one)) == (size, count)


@pytest.mark.parametrize(
    ("share", "sequences", "passes", "count"),
    [(64, 16, None, 4), (50, 16, None, 4), (64, 4, 8, 16), (64, 4, 6, 16), (64, 64, None, 1), (40, 4, 4, 10)],
)
def test_micro_batches_of_a_pipeline(share: int, sequences: int, passes: int | None, count: int) -> None:
    one = candidate(share, sequences, pp=2, pp_schedule="gpipe", pp_micro_batches=passes)
    assert (_size(one), _count(one)) == (sequences, count)


def test_two_formats_are_two_times() -> None:
    asked = question("gpus=1", data=DataConfig(sequence_length=1024, vocab_size=8192), model=NARROW)
    pace = Pace(asked)
    for form in ("fp8", "bf16", "fp32"):
        one = laid_out(asked, 64, {}, precision=PrecisionConfig(name=form), compile=COMPILED)
        exact = step_time(one.config, one.axes, asked.profile).seconds
        assert pace.seconds(one) == pytest.approx(exact, rel=0.01), form


@pytest.mark.parametrize(("share", "count"), [(5, 6), (6, 6), (64, 64)])
def test_an_interleaved_pipeline_is_filled_up(share: int, count: int) -> None:
    assert _count(candidate(share, 1, pp=2, pp_schedule="interleaved", pp_stages=2)) == count
