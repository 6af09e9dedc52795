"""Planned memory of pipelines: never below the peak that the accounting finds, whole weights and gradients included."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from train.spec.accounting import held
from train.spec.accounting.step import of_rank
from train.spec.config import (
    BatchConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.footprint import footprint
from train.spec.mesh import Axes, axes, check

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb1p", "zbv")
LENGTH = 1024


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[RunConfig, Axes]:
    """Return a run whose layers are cut over ranks, with whatever else the trainer combines with that."""

    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    parallel = ParallelConfig(
        dp_replicate=one(1, 2),
        dp_shard=one(1, 2, 8),
        cp=one(1, 2),
        tp=one(1, 2),
        pp=one(2, 4),
        zero=one(1, 2, 3),
        pp_schedule=one(*SCHEDULES),
        pp_micro_batches=one(None, 8),
        micro_batch_sequences=one(1, 2, 4),
    )
    shape = axes(
        parallel, (parallel.dp_replicate or 1) * (parallel.dp_shard or 1) * parallel.cp * parallel.tp * parallel.pp
    )
    name = one("fp32", "bf16", "fp8")
    config = RunConfig(
        ModelConfig(
            width=one(512, 1024, 4096), layers=one(8, 18), head_dim=64, kv_heads=one(None, 4), mlp_width=2048,
            qk_norm=one(True, False), tied_embeddings=one(True, False), position=one("rope", "alibi"),
        ),
        DataConfig(sequence_length=LENGTH, vocab_size=one(1024, 131072)),
        BatchConfig(tokens=LENGTH * shape.data * one(1, 4, 32)),
        optim=OptimConfig(name=one("adamw", "muon")),
        precision=PrecisionConfig(name=name, reduce="fp32" if name == "fp32" else one("fp32", "bf16")),
        parallel=parallel,
        memory=MemoryConfig(
            checkpointing=one("none", "full", "every", "selective", "budget"),
            offload=one("none", "optimizer", "parameters"),
        ),
    )  # fmt: skip
    try:
        check(config, shape.size)
    except ValueError:
        assume(False)
    return config, shape


@settings(max_examples=200, deadline=None)
@given(drawn=pipelines(), device=st.sampled_from(["cuda", "cpu"]))
def test_a_pipeline_is_planned_from_above(drawn: tuple[RunConfig, Axes], device: str) -> None:
    config, shape = drawn
    size = config.parallel.micro_batch_sequences or 1
    peaks = [of_rank(config, shape, device, size, rank).peak.total for rank in range(shape.pp)]
    assert footprint(config, shape, device).total >= max(peaks)


def test_a_pipeline_over_fsdp_is_planned_with_whole_weights_and_gradients() -> None:
    layout = ParallelConfig(pp=2, dp_replicate=1, dp_shard=8, micro_batch_sequences=1)
    config = RunConfig(
        ModelConfig(width=1024, layers=16, head_dim=128),
        DataConfig(sequence_length=LENGTH, vocab_size=1024),
        BatchConfig(tokens=64 * LENGTH),
        precision=PrecisionConfig(name="bf16"),
        parallel=layout,
    )
    found = footprint(config, Axes(dp_shard=8, pp=2), "cuda")
    most = max(held.part_of(config, Axes(dp_shard=8, pp=2), rank).gathered for rank in range(2))
    assert found.gathered == (2 + 4) * most, "weights in bf16 and gradients in fp32"
    alone = footprint(config, Axes(pp=2), "cuda")
    assert alone.gathered == 0
    assert found.states + found.gathered < found.total
