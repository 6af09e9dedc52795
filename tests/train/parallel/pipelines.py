"""Cells of pipelines: every schedule, alone and with what it composes with."""

from __future__ import annotations

from dataclasses import replace

from tests.train.parallel.cells import BIASED, COMPILE, EXPERTS, MODEL, SCORED, Cell, parallel
from train.spec.config import MemoryConfig, ParallelConfig, PrecisionConfig
from train.spec.pipeline_layout import SCHEDULES, can_split

DEEP = replace(MODEL, layers=8)
DEEP_TIED = replace(DEEP, tied_embeddings=True)
SHALLOW, SHALLOW_TIED = replace(DEEP, layers=4), replace(DEEP_TIED, layers=4)
"""A layer for each stage of four: those of four ranks, or of two ranks with two."""
FEW = {"micro_batch_sequences": 2}
FP16 = PrecisionConfig(name="fp16", loss_scale=2.0**17, loss_scale_steps=1)
"""The factor doubles at every step until a gradient overflows, in the third: from then on every second is skipped."""

ALL = (
    Cell("pp 4, gpipe", parallel(pp=4, pp_schedule="gpipe", **FEW), SHALLOW, masked=True),
    Cell("pp 4, 1f1b, tied, clipped hard", parallel(pp=4, **FEW), SHALLOW_TIED, masked=True, clip=0.05),
    Cell("pp 4, interleaved, tied", parallel(pp=4, pp_schedule="interleaved", **FEW), DEEP_TIED, masked=True),
    Cell("pp 4, zb1p", parallel(pp=4, pp_schedule="zb1p", **FEW), DEEP, masked=True),
    Cell("pp 4, zbv", parallel(pp=4, pp_schedule="zbv", **FEW), DEEP, masked=True),
    Cell("pp 2 x fsdp 2, 1f1b, tied", parallel(pp=2, dp_shard=2, micro_batch_sequences=1), SHALLOW_TIED, masked=True),
    Cell("pp 2 x tp 2, 1f1b, tied", parallel(pp=2, tp=2, **FEW), SHALLOW_TIED, masked=True),
    # Gradients of the first step come out the same; later a sum that is rounded otherwise may flip a last digit of
    # fp16, 4.9e-4 of a number.
    Cell(
        "pp 4, 1f1b, tied, fp16",
        parallel(pp=4, **FEW),
        SHALLOW_TIED,
        precision=FP16,
        overflows=True,
        gradient=2e-3,
        loss=2e-3,
        reference_micro=2,
        steps=6,
    ),
    Cell(
        "experts: pp 2 x fsdp 2 x ep 2, 1f1b",
        parallel(pp=2, dp_shard=2, ep=2, micro_batch_sequences=1),
        replace(EXPERTS, layers=4, router_bias_speed=0.05),
        masked=True,
    ),
    Cell(
        "experts: pp 4, interleaved, tied, clipped hard",
        parallel(pp=4, pp_schedule="interleaved", **FEW),
        replace(BIASED, layers=8, tied_embeddings=True),
        masked=True,
        clip=0.05,
    ),
    Cell(
        "experts: pp 2 x fsdp 2 x ep 2, zbv, ZeRO-2, sigmoid",
        parallel(pp=2, dp_shard=2, ep=2, pp_schedule="zbv", zero=2, **FEW),
        replace(SCORED, layers=4),
        masked=True,
    ),
    Cell(
        "experts: pp 2 x cp 2, gpipe, made again",
        parallel(pp=2, cp=2, pp_schedule="gpipe", micro_batch_sequences=1),
        replace(EXPERTS, layers=4),
        masked=True,
        memory=MemoryConfig(checkpointing="full"),
    ),
    Cell("pp 4, 1f1b, uneven layers", parallel(pp=4, pp_layers=(1, 4, 2, 1), micro_batch_sequences=1), DEEP),
    Cell("pp 4, 1f1b, accumulated", parallel(pp=4, pp_micro_batches=4, micro_batch_sequences=1), SHALLOW, masked=True),
    Cell("pp 4, zb1p, tied", parallel(pp=4, pp_schedule="zb1p", micro_batch_sequences=1), DEEP_TIED, masked=True),
    Cell(
        "pp 4, zbv, tied, clipped hard",
        parallel(pp=4, pp_schedule="zbv", micro_batch_sequences=1),
        DEEP_TIED,
        masked=True,
        clip=0.05,
    ),
    Cell(
        "pp 2 x fsdp 2, interleaved",
        parallel(pp=2, dp_shard=2, pp_schedule="interleaved", **FEW),
        SHALLOW,
        masked=True,
    ),
    Cell("pp 2 x fsdp 2, zb1p, ZeRO-2", parallel(pp=2, dp_shard=2, pp_schedule="zb1p", zero=2, **FEW), SHALLOW),
    Cell(
        "pp 2 x fsdp 2, zbv, ZeRO-2, tied",
        parallel(pp=2, dp_shard=2, pp_schedule="zbv", zero=2, **FEW),
        SHALLOW_TIED,
    ),
    Cell("pp 2 x 2 copies, gpipe", parallel(pp=2, dp_replicate=2, pp_schedule="gpipe", **FEW), SHALLOW, masked=True),
    Cell("pp 2 x tp 2, interleaved", parallel(pp=2, tp=2, pp_schedule="interleaved", **FEW), SHALLOW, clip=0.05),
    Cell("pp 2 x tp 2, zbv", parallel(pp=2, tp=2, pp_schedule="zbv", **FEW), SHALLOW),
    Cell(
        "pp 2 x tp 2, zbv, z-loss",
        parallel(pp=2, tp=2, pp_schedule="zbv", **FEW),
        SHALLOW,
        masked=True,
        penalised=True,
    ),
    Cell(
        "pp 2 x cp 2, gpipe, accumulated unevenly",
        parallel(pp=2, cp=2, pp_schedule="gpipe", pp_micro_batches=3, micro_batch_sequences=1),
        SHALLOW,
        masked=True,
    ),
    Cell("pp 2 x cp 2, 1f1b", parallel(pp=2, cp=2, **FEW), SHALLOW, masked=True),
)


def splits(layout: ParallelConfig) -> bool:
    """Say whether a layout's schedule runs backward passes in two halves, which older versions of torch cannot."""
    return layout.pp > 1 and SCHEDULES[layout.pp_schedule].splits


PIPELINES = tuple(cell for cell in ALL if can_split() or not splits(cell.parallel))

RECOMPUTED_PIPELINES = (
    Cell(
        "pp 4, interleaved, a stage each, recomputed",
        parallel(pp=4, pp_schedule="interleaved", pp_stages=1, **FEW),
        SHALLOW,
        memory=MemoryConfig(checkpointing="full"),
        documents=True,
    ),
)
"""As `cells.RECOMPUTED`."""

COMPILED_PIPELINES = (
    # Here torch 2.13 loses the whole gradient of an embedding whose output still waits for its message.
    Cell(
        "compiled: pp 2 x tp 2, interleaved, tied",
        parallel(pp=2, tp=2, pp_schedule="interleaved", **FEW),
        SHALLOW_TIED,
        compile=COMPILE,
        masked=True,
    ),
)

EIGHT = (Cell("pp 2 x fsdp 2 x tp 2, 1f1b, tied", parallel(pp=2, dp_shard=2, tp=2, **FEW), SHALLOW_TIED, masked=True),)
"""For eight ranks."""
