"""Pipelines: every schedule against one process, how layers are cut, and what is refused before ranks meet.

A compiled one is with the compiled layouts (test_parallel_parity).
"""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.train.parallel import pipelines, resumed
from tests.train.parallel.cells import parallel
from tests.train.parallel.fakes import schedules_made
from tests.train.parallel.ranks import line
from tests.train.parallel.test_parallel_parity import failures, table
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
)
from train.spec.mesh import check
from train.spec.pipeline_layout import (
    SCHEDULES,
    can_split,
    fitting_stages,
    layers_of,
    micro_batches,
    rank_of,
    stages_of,
    stages_per_rank,
    waiting_passes,
)


@pytest.mark.slow
def test_every_schedule_trains_as_one_process_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = "tests.train.parallel.pipelines"
    wanted = (*pipelines.PIPELINES, *pipelines.RECOMPUTED_PIPELINES)
    rows = table(f"{module}:PIPELINES,{module}:RECOMPUTED_PIPELINES", tmp_path)
    with capsys.disabled():
        print("\n" + "\n".join(line(row) for row in rows))
    assert not failures(wanted, rows)


@pytest.mark.skipif(not can_split(), reason=f"torch {metadata.version('torch')} cannot split backward passes")
def test_schedules_that_split_backward_passes_are_among_them() -> None:
    assert {schedule for schedule in SCHEDULES if SCHEDULES[schedule].splits} == {
        cell.parallel.pp_schedule for cell in pipelines.PIPELINES if pipelines.splits(cell.parallel)
    }
    assert {name for name, layout in resumed.MESHES.items() if pipelines.splits(layout)} == {"pp 2 x tp 2, zbv"}
    assert resumed.PAIRS == resumed.ALL_PAIRS


@pytest.mark.slow
def test_three_kinds_of_parallelism_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table("tests.train.parallel.pipelines:EIGHT", tmp_path, ranks=8)
    with capsys.disabled():
        print("\n" + "\n".join(line(row) for row in rows))
    assert not failures(pipelines.EIGHT, rows)


def test_passes_of_unequal_lengths_keep_their_schedules_from_step_to_step() -> None:
    cut = parallel(pp=2, dp_shard=2, pp_schedule="gpipe", pp_micro_batches=2, micro_batch_sequences=1)
    shape = DataConfig(vocab_size=64, sequence_length=32)
    run = replace(config(layers=2), parallel=cut, data=shape, batch=BatchConfig(tokens=2 * 3 * 32))
    assert schedules_made(run, rank=3, ranks=4, steps=2) == [1, 2], "each made in the first step"


def config(layers: int = 8, vocab_size: int = 64, **changes: object) -> RunConfig:
    return RunConfig(
        model=ModelConfig(width=32, layers=layers, head_dim=8),
        data=DataConfig(vocab_size=vocab_size),
        budget=BudgetConfig(tokens=12_800),
        parallel=parallel(**changes),
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_every_stage_lies_on_one_rank_and_every_layer_in_one_stage(schedule: str, pp: int) -> None:
    run = config(layers=11, pp=pp, pp_schedule=schedule)
    stages = pp * stages_per_rank(run.parallel)
    found = {stage: rank for rank in range(pp) for stage in stages_of(run.parallel, rank)}
    assert sorted(found) == list(range(stages))
    assert all(rank_of(run.parallel, stage) == rank for stage, rank in found.items())
    assert sum(layers_of(run)) == 11
    assert min(layers_of(run)) >= 1
    if schedule == "zbv":
        assert found[0] == found[stages - 1], "the first rank also has the last stage"


def test_a_large_head_counts_as_layers() -> None:
    assert layers_of(config(layers=8, pp=4)) == (2, 2, 2, 2)
    # A layer has 12 width^2 weights or so, this head has as many as four layers.
    assert layers_of(config(layers=8, vocab_size=1500, pp=4)) == (3, 2, 2, 1)
    assert layers_of(config(layers=8, pp=2, pp_layers=(7, 1))) == (7, 1)


@pytest.mark.parametrize(
    ("changes", "layers", "stages"),
    [
        ({"pp": 2}, 4, 2),
        ({"pp": 2}, 3, 1),
        ({"pp": 4}, 4, 1),
        ({"pp": 4, "pp_stages": 3}, 4, 3),
        ({"pp": 2, "pp_layers": (2, 1, 4, 1, 1, 1)}, 10, 3),
    ],
)
def test_open_stages_are_those_of_the_layers_or_two_of_a_rank_or_one_of_a_shallow_model(
    changes: dict[str, Any], layers: int, stages: int
) -> None:
    assert fitting_stages(ParallelConfig(pp_schedule="interleaved", **changes), layers) == stages


@pytest.mark.parametrize(
    ("schedule", "stages", "waiting"),
    # As torch's own orders of passes have them on the first of four ranks, of 16 micro-batches.
    [("gpipe", 1, 16), ("1f1b", 1, 4), ("interleaved", 2, 5.5), ("interleaved", 3, 5), ("zb1p", 2, 4), ("zbv", 2, 4)],
)
def test_passes_that_wait_for_their_way_back(schedule: str, stages: int, waiting: float) -> None:
    layout = ParallelConfig(pp=4, pp_schedule=schedule, pp_stages=stages)
    assert waiting_passes(layout, 16) == waiting
    assert waiting_passes(layout, 2) == 2


@pytest.mark.parametrize(("schedule", "wanted", "found"), [("1f1b", 2, 4), ("gpipe", 3, 3), ("interleaved", 9, 10)])
def test_micro_batches_are_as_many_as_the_schedule_takes(schedule: str, wanted: int, found: int) -> None:
    assert micro_batches(ParallelConfig(pp=4, pp_schedule=schedule), wanted) == found


@pytest.mark.parametrize(
    ("changes", "world", "words"),
    [
        ({"pp": 16}, None, "16 stages but the model has 8 layers.*set parallel.pp to at most 8"),
        ({"pp": 8, "pp_schedule": "zbv"}, None, "16 stages.*use pp_schedule=1f1b.*or parallel.pp=4"),
        ({"pp": 4, "pp_schedule": "interleaved", "pp_stages": 3}, None, "12 stages.*set parallel.pp_stages=1, or null"),
        ({"pp": 4, "pp_layers": (2, 2, 2)}, None, "has 4 stages"),
        ({"pp_layers": (4, 4)}, None, r"pp_layers=\[4, 4\] cuts a pipeline, and parallel\.pp=1 is none"),
        ({"pp": 4, "pp_layers": (4, 2, 2, 0)}, None, "one each at least"),
        ({"pp": 4, "pp_micro_batches": 0}, None, "not allowed below 1"),
        ({"pp": 2, "dp_shard": 2, "pp_schedule": "zbv"}, 4, "parallel.zero=3 is refused"),
        ({"pp": 2, "dp_replicate": 2, "strategy": "ddp"}, 4, "does not compose with"),
        ({"pp": 3}, 4, "makes 3 ranks but the world has 4"),
    ],
)
def test_pipelines_that_cannot_be_are_refused(
    changes: dict[str, Any], world: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    with pytest.raises(ValueError, match=words):
        check(config(**changes), world)


@pytest.mark.parametrize("schedule", ["zb1p", "zbv"])
def test_split_backward_passes_refuse_compiled_and_recomputed_blocks(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    run = config(pp=2, pp_schedule=schedule)
    check(run)
    with pytest.raises(ValueError, match=r"compile\.blocks=true is refused.*wrong ones"):
        check(replace(run, compile=CompileConfig(blocks=True)))
    with pytest.raises(ValueError, match=r"memory\.checkpointing=full is refused"):
        check(replace(run, memory=MemoryConfig(checkpointing="full")))
    check(replace(config(pp=2, pp_schedule="interleaved"), compile=CompileConfig(blocks=True)))


@pytest.mark.parametrize("schedule", ["zb1p", "zbv"])
def test_split_backward_passes_need_a_torch_that_can_split_them(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.11.0+cu130")
    with pytest.raises(ValueError, match=r"needs torch 2\.13 or newer.*zbv sends to its own rank"):
        check(config(pp=2, pp_schedule=schedule))
    check(config(pp=2, pp_schedule="interleaved"))
