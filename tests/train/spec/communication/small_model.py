"""A small model and its config, of which the bytes that ranks send can be told by hand."""

from __future__ import annotations

from typing import Any

from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.resolve import resolve

MODEL = ModelConfig(width=256, layers=8, head_dim=64, kv_heads=4, mlp_width=512)
LENGTH, VOCABULARY, SEQUENCES = 128, 1024, 16


def config(
    model: ModelConfig = MODEL, *, reduce: str = "fp32", checkpointing: str = "none", **layout: Any
) -> RunConfig:
    """Return the config of a step of 16 sequences in bf16, by micro-batches of two."""
    return resolve(
        RunConfig(
            model=model,
            data=DataConfig(vocab_size=VOCABULARY, sequence_length=LENGTH),
            batch=BatchConfig(tokens=SEQUENCES * LENGTH),
            budget=BudgetConfig(tokens=10 * SEQUENCES * LENGTH),
            precision=PrecisionConfig(name="bf16", reduce=reduce),
            memory=MemoryConfig(checkpointing=checkpointing),
            parallel=ParallelConfig(**{"dp_replicate": 1, "dp_shard": 1, "micro_batch_sequences": 2, **layout}),
        )
    )
