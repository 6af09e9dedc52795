"""Micro-batches on a GPU: a step is not cut where memory holds it, and goes on where that was wrong."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from train.memory.micro_batch import SizeRecord
from train.runtime.distributed import World
from train.spec.config import BatchConfig, ModelConfig, PrecisionConfig, RunConfig
from train.spec.resolve import resolve
from train.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
STEPS = 3


@pytest.fixture
def wide(tiny: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run whose activations are far larger than its weights; 1,024 sequences a step, with notes of its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    tokens = 1024 * tiny.data.sequence_length
    return resolve(
        replace(
            tiny,
            model=ModelConfig(width=512, layers=4, head_dim=64),
            batch=BatchConfig(tokens=tokens),
            budget=replace(tiny.budget, tokens=10 * tokens),
            precision=PrecisionConfig(name="bf16"),
            runtime=replace(tiny.runtime, device="cuda"),
        )
    )


@pytest.fixture
def limit() -> Iterator[None]:
    """Give back what the last test held, and lift a limit on memory afterwards."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def losses(trainer: Trainer) -> list[float]:
    return [float(trainer.train_step()[0]) for _ in range(STEPS)]


@pytest.mark.usefixtures("limit")
def test_a_step_that_fits_is_one_micro_batch_and_one_that_does_not_is_cut(wide: RunConfig, tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    whole = Trainer(wide, tmp_path, World(), device)
    assert whole.model.micro == 1024
    wanted = losses(whole)
    peak = torch.cuda.max_memory_reserved(device)
    del whole
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.7 * peak / torch.cuda.mem_get_info(device)[1])
    cut = Trainer(wide, tmp_path, World(), device)
    assert cut.model.micro == 1024, "how little torch may take is not to be seen"
    assert losses(cut) == pytest.approx(wanted, abs=3e-2)
    assert cut.model.micro < 1024
    (note,) = (tmp_path / "micro_batches").iterdir()
    seen = SizeRecord(note).read()
    assert seen is not None and seen.fails is not None and seen.fails <= 1024
