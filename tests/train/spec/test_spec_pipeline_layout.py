"""How a pipeline is cut: tables worked out by hand, and each refusal beside what is just allowed."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from train.spec.config import CompileConfig, DataConfig, MemoryConfig, ModelConfig, ParallelConfig, RunConfig
from train.spec.pipeline_layout import (
    SCHEDULES,
    can_split,
    check_pipeline,
    fitting_stages,
    layers_of,
    micro_batches,
    rank_of,
    share_of,
    stages_of,
    stages_per_rank,
    waiting_passes,
)

MODEL = ModelConfig(width=48, layers=8, head_dim=12, mlp_width=128)
BLOCK = 4 * 48 * 48 + 3 * 48 * 128
"""Weights of one block's matrices: 27,648, which are 576 rows of the head."""


def config(vocabulary: int = 576, layers: int = 8, **parallel: Any) -> RunConfig:
    """A run whose head weighs as much as `vocabulary` / 576 of its blocks."""
    return RunConfig(
        replace(MODEL, layers=layers), DataConfig(vocab_size=vocabulary), parallel=ParallelConfig(**parallel)
    )


@pytest.fixture
def torch_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    def pretend(version: str) -> None:
        monkeypatch.setattr(metadata, "version", lambda name: version if name == "torch" else "0")

    return pretend


@pytest.mark.parametrize(
    ("schedule", "given", "stages"),
    [
        ("gpipe", None, 1), ("gpipe", 3, 1), ("1f1b", None, 1), ("1f1b", 3, 1), ("interleaved", None, 2),
        ("interleaved", 1, 1), ("interleaved", 3, 3), ("zb1p", None, 2), ("zb1p", 3, 3), ("zbv", None, 2),
        ("zbv", 3, 2),
    ],
)  # fmt: skip
def test_stages_of_one_rank(schedule: str, given: int | None, stages: int) -> None:
    assert stages_per_rank(ParallelConfig(pp=4, pp_schedule=schedule, pp_stages=given)) == stages


@pytest.mark.parametrize(
    ("pp", "given", "cut", "layers", "stages"),
    [
        (2, 3, (1, 1), 1, 3),  # as given
        (2, None, (1, 1), 9, 1),  # as many as the layers' list has
        (2, None, (1,) * 6, 9, 3),
        (2, None, (1, 1, 1), 9, 2),  # a list that two ranks cannot share
        (2, None, (), 4, 2),
        (2, None, (), 3, 1),  # too few layers for two
        (4, None, (), 8, 2),
        (4, None, (), 7, 1),
    ],
)
def test_stages_where_the_config_leaves_them_open(
    pp: int, given: int | None, cut: tuple[int, ...], layers: int, stages: int
) -> None:
    found = fitting_stages(ParallelConfig(pp=pp, pp_stages=given, pp_layers=cut), layers)
    assert (found, type(found)) == (stages, int)


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [
        ("1f1b", [[0], [1], [2]]),
        ("gpipe", [[0], [1], [2]]),
        ("interleaved", [[0, 3], [1, 4], [2, 5]]),
        ("zb1p", [[0, 3], [1, 4], [2, 5]]),
        ("zbv", [[0, 5], [1, 4], [2, 3]]),  # there and back
    ],
)
def test_which_rank_has_which_stages(schedule: str, stages: list[list[int]]) -> None:
    parallel = ParallelConfig(pp=3, pp_schedule=schedule)
    assert [stages_of(parallel, rank) for rank in range(3)] == stages
    assert {stage: rank_of(parallel, stage) for own in stages for stage in own} == {
        stage: rank for rank, own in enumerate(stages) for stage in own
    }


@pytest.mark.parametrize(
    ("vocabulary", "layers", "parallel", "sizes"),
    [
        (576, 7, {"pp": 1}, (7,)),
        (576, 7, {"pp": 2, "pp_layers": (1, 6)}, (1, 6)),
        (576, 7, {"pp": 2}, (4, 3)),  # 8 layers' worth, the head is one
        (576 * 3, 9, {"pp": 2}, (6, 3)),  # 12, the head is three
        (576 * 3, 9, {"pp": 3}, (4, 4, 1)),
        (576 * 3, 11, {"pp": 3}, (5, 4, 2)),  # 14 over 3 are 5, 5 and 4
        (576 * 50, 4, {"pp": 2}, (3, 1)),  # a head that outweighs the rest has one layer all the same
        (576, 8, {"pp": 4}, (3, 2, 2, 1)),
        (576, 4, {"pp": 4}, (1, 1, 1, 1)),  # as many stages as layers
        (576, 11, {"pp": 2, "pp_schedule": "interleaved"}, (3, 3, 3, 2)),
        (576, 23, {"pp": 2, "pp_schedule": "interleaved", "pp_stages": 3}, (4, 4, 4, 4, 4, 3)),
        (576, 9, {"pp": 2, "pp_schedule": "zbv"}, (3, 2, 2, 2)),
    ],
)
def test_layers_of_each_stage_share_the_work_with_the_heads(
    vocabulary: int, layers: int, parallel: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert layers_of(config(vocabulary, layers, **parallel)) == sizes


def test_a_heads_weight_is_counted_in_matrices_of_a_layer_not_in_its_embedding() -> None:
    untied, tied = config(576 * 3, 9, pp=3), config(576 * 3, 9, pp=3)
    tied = replace(tied, model=replace(tied.model, tied_embeddings=True))
    assert layers_of(untied) == layers_of(tied)


@pytest.mark.parametrize(
    ("parallel", "pp", "shares"),
    [
        ({}, 1, [(9, True, True)]),
        ({"pp_schedule": "interleaved"}, 1, [(9, True, True)]),
        ({"pp_schedule": "zbv"}, 1, [(9, True, True)]),
        ({}, 2, [(5, True, False), (4, False, True)]),
        ({"pp_schedule": "interleaved"}, 2, [(5, True, False), (4, False, True)]),  # 3, 2, 2 and 2
        ({"pp_schedule": "zbv"}, 2, [(5, True, True), (4, False, False)]),
        ({}, 3, [(4, True, False), (3, False, False), (2, False, True)]),
    ],
)
def test_what_a_rank_has_of_the_layers(parallel: dict[str, Any], pp: int, shares: list[tuple[int, bool, bool]]) -> None:
    assert [share_of(config(576, 9, **parallel), pp, rank) for rank in range(pp)] == shares


@pytest.mark.parametrize(
    ("schedule", "pp", "counts"),
    [
        ("gpipe", 4, {0: 1, 1: 1, 3: 3, 9: 9}),
        ("zbv", 4, {1: 1, 3: 3, 9: 9}),
        ("1f1b", 4, {1: 4, 4: 4, 5: 5, 9: 9}),  # as many as stages at least
        # Equal rounds, of which there are as many as the ranks fit into the micro-batches, one at least.
        ("interleaved", 4, {1: 1, 3: 3, 4: 4, 5: 5, 7: 7, 8: 8, 9: 10, 11: 12, 13: 15, 16: 16, 17: 20}),
        ("zb1p", 2, {1: 1, 3: 3, 5: 6, 7: 8, 8: 8, 11: 12}),
    ],
)
def test_micro_batches_of_one_pass(schedule: str, pp: int, counts: dict[int, int]) -> None:
    parallel = ParallelConfig(pp=pp, pp_schedule=schedule)
    found = {wanted: micro_batches(parallel, wanted) for wanted in counts}
    assert found == counts
    assert {type(count) for count in found.values()} == {int}
    if SCHEDULES[schedule].rounds:
        assert all(count % max(1, count // pp) == 0 for count in found.values())


@pytest.mark.parametrize(
    ("schedule", "pp", "stages", "waiting"),
    [
        ("gpipe", 4, None, 100.0),
        ("1f1b", 4, None, 4.0),
        ("zb1p", 4, None, 4.0),
        ("zbv", 3, None, 3.0),
        ("interleaved", 4, 1, 7.0),
        ("interleaved", 4, 2, 5.5),  # 4 on the way out, 6 until the first is back, 1 in hand: of half a rank's layers
        ("interleaved", 2, 2, 2.5),
        ("interleaved", 2, 3, 7 / 3),
    ],
)
def test_micro_batches_that_wait(schedule: str, pp: int, stages: int | None, waiting: float) -> None:
    parallel = ParallelConfig(pp=pp, pp_schedule=schedule, pp_stages=stages)
    assert waiting_passes(parallel, 100) == pytest.approx(waiting)
    assert waiting_passes(parallel, 2) == 2.0, "no more wait than there are"


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"pp": 2, "pp_stages": 0}, r"parallel\.pp_stages=0 is not allowed below 1"),
        ({"pp": 2, "pp_micro_batches": 0}, r"parallel\.pp_micro_batches=0 is not allowed below 1"),
        ({"pp_layers": (8,)}, r"parallel\.pp_layers=\[8\] cuts a pipeline, and parallel\.pp=1 is none"),
        ({"pp": 9}, r"pp=9 with pp_schedule=1f1b makes 9 stages but the model has 8 layers.*at most 8, .*at least 9"),
        ({"pp": 8, "pp_schedule": "interleaved"}, r"makes 16 stages.*set parallel\.pp_stages=1, or null"),
        ({"pp": 5, "pp_schedule": "zbv"}, r"makes 10 stages.*use pp_schedule=1f1b or zb1p.*or parallel\.pp=4$"),
        ({"pp": 2, "pp_layers": (4, 3)}, r"pp_layers=\[4, 3\] is not allowed.* has 2 stages.*model\.layers=8"),
        ({"pp": 2, "pp_layers": (4, 3, 1)}, r"pp_layers=\[4, 3, 1\] is not allowed"),
        ({"pp": 2, "pp_layers": (8, 0)}, r"pp_layers=\[8, 0\] is not allowed"),
        ({"pp": 2, "pp_layers": (9, -1)}, r"pp_layers=\[9, -1\] is not allowed"),
    ],
)
def test_pipelines_that_cannot_be(parallel: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_pipeline(config(**parallel))


def test_with_fewer_layers_than_a_v_has_stages_one_rank_is_what_is_left() -> None:
    with pytest.raises(ValueError, match=r"set parallel\.pp to at most 1, or model\.layers to at least 2"):
        check_pipeline(config(layers=1, pp=2, pp_schedule="zbv"))
    with pytest.raises(ValueError, match=r"or parallel\.pp=1$"):
        check_pipeline(config(layers=2, pp=2, pp_schedule="zbv"))


@pytest.mark.parametrize(
    "parallel",
    [
        {},
        {"pp_stages": 1, "pp_micro_batches": 1},
        {"pp": 2, "pp_stages": 1, "pp_micro_batches": 1},
        {"pp": 8},
        {"pp": 2, "pp_layers": (7, 1)},
        {"pp": 4, "pp_schedule": "interleaved"},
        {"pp": 8, "pp_schedule": "interleaved", "pp_stages": 1},
        {"pp": 4, "pp_schedule": "zbv", "zero": 2},
    ],
)
def test_pipelines_that_just_can_be(parallel: dict[str, Any], torch_version: Any) -> None:
    torch_version("2.13.0")
    check_pipeline(config(**parallel))


@pytest.mark.parametrize(
    ("version", "can"),
    [
        ("1.14.0", False), ("2.0.1", False), ("2.11.0+cu130", False), ("2.12.9", False), ("2.13.0", True),
        ("2.13.1+cpu", True), ("2.14.0a0+gitabc", True), ("3.0.0", True),
    ],
)  # fmt: skip
def test_from_which_version_backward_passes_are_split(version: str, can: bool, torch_version: Any) -> None:
    torch_version(version)
    assert can_split() is can


@pytest.mark.parametrize("schedule", ["zb1p", "zbv"])
@pytest.mark.parametrize(
    ("changes", "sharded", "message"),
    [
        ({}, True, r"with parallel\.zero=3 is refused"),
        ({"compile": CompileConfig(blocks=True)}, False, r"with compile\.blocks=true is refused"),
        ({"memory": MemoryConfig(checkpointing="full")}, False, r"with memory\.checkpointing=full is refused"),
        ({"memory": MemoryConfig(checkpointing="selective")}, False, r"memory\.checkpointing=selective is refused"),
    ],
)
def test_what_cannot_run_backward_in_two_halves(
    schedule: str, changes: dict[str, Any], sharded: bool, message: str, torch_version: Any
) -> None:
    torch_version("2.13.0")
    split = config(pp=2, pp_schedule=schedule)
    check_pipeline(split)
    check_pipeline(split, sharded=False)
    for zero in (1, 2):
        check_pipeline(replace(split, parallel=replace(split.parallel, zero=zero)), sharded=True)
    with pytest.raises(ValueError, match=rf"parallel\.pp_schedule={schedule} .*{message}"):
        check_pipeline(replace(split, **changes), sharded)
    whole = replace(split, parallel=replace(split.parallel, pp_schedule="interleaved"), **changes)
    check_pipeline(whole, sharded)  # which every message names as the way out
    torch_version("2.12.0")
    check_pipeline(whole, sharded)
    with pytest.raises(ValueError, match=rf"parallel\.pp_schedule={schedule} needs torch 2\.13 or newer"):
        check_pipeline(split)
