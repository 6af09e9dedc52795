"""A prepared corpus of made-up tokens, and the config of a run that takes a fraction of a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fake_corpus import write_corpus
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.resolve import resolve

VOCABULARY = 64
LENGTH = 16


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data root of a corpus named `fake` with 64 tokens."""
    root = tmp_path_factory.mktemp("data")
    write_corpus(root, VOCABULARY, train_tokens=20_000, validation_tokens=5_000)
    return root


@pytest.fixture(scope="session")
def tiny(corpus: Path) -> RunConfig:
    """A run of 30 steps of 8 sequences, the last one short; a fraction of a second of training."""
    return resolve(
        RunConfig(
            model=ModelConfig(width=16, layers=2, head_dim=8, kv_heads=1),
            data=DataConfig(name="fake", vocab_size=VOCABULARY, sequence_length=LENGTH),
            # Small enough that rounding does not grow into another trajectory within the run.
            optim=OptimConfig(lr=2e-3),
            batch=BatchConfig(tokens=8 * LENGTH),
            budget=BudgetConfig(tokens=(29 * 8 + 3) * LENGTH),
            eval=EvalConfig(sequences=10, count=4),
            runtime=RuntimeConfig(device="cpu", data_root=str(corpus), log_steps=1, checkpoint_seconds=1e9),
        )
    )
