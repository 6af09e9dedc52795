"""Questions for these tests: a small model on hosts with eight H200s, composed without Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study.config.schema import ClusterConfig, StudyConfig
from study.planning.parallel.question import Question, ask
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
)

CPU = Path(__file__).with_name("cpu.yaml")
"""A profile of two processes without GPUs."""
MODEL = ModelConfig(width=1024, layers=8, head_dim=64, kv_heads=4, mlp_width=2816)


def config(words: Sequence[str] = (), **changes: Any) -> StudyConfig:
    """Return a config in place of a composed one; parallel.*, memory.checkpointing and precision of the words count."""
    axes: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for name, _, value in (word.partition("=") for word in words):
        section, _, key = name.partition(".")
        if section == "parallel" and key:
            axes[key] = int(value) if value.isdecimal() else value
        elif name == "memory.checkpointing":
            sections["memory"] = MemoryConfig(checkpointing=value)
        elif name == "precision":
            sections["precision"] = PrecisionConfig(name=value)
        elif name == "cluster.gpu_memory_gb":
            sections["cluster"] = ClusterConfig(gpu_memory_gb=float(value))
    sections["parallel"] = ParallelConfig(**axes)
    whole: dict[str, Any] = {
        "model": MODEL,
        "data": DataConfig(sequence_length=1024, vocab_size=8192),
        "batch": BatchConfig(tokens=64 * 1024),
        "budget": BudgetConfig(tokens=10**8),
        **sections,
        **changes,
    }
    return StudyConfig(**whole)


def question(*words: str, **changes: Any) -> Question:
    """Return a question on the profile of hosts with eight H200s, or on that of the words."""
    cluster = [] if any(word.startswith("cluster=") for word in words) else ["cluster=h200_x8_400g"]
    return ask([*cluster, *words], lambda rest: config(rest, **changes))
