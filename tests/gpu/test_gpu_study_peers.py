"""The script that a study by other means trains with, compiled and in bf16 on a GPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks.peers.points import design
from benchmarks.peers.script import train
from tests.benchmarks.test_study_peers import TINY, as_hydra_gives_it, made_up

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

__all__ = ["made_up"]


def test_the_script_learns_compiled_in_bf16(made_up: Path, tmp_path: Path) -> None:
    words = ("data.sequence_length=64", "model.head_dim=32", "search.width_step=32", "precision=bf16")
    budget = ("search.budgets=[3e10]", "search.ratios=[40]", "runtime.device=cuda")
    (point,) = design((*TINY, *words, *budget, f"runtime.data_root={made_up}"))
    loss = train(as_hydra_gives_it(point, tmp_path, compiled=True))
    assert loss < 0.8 * math.log(257)  # every second token follows from the one before it
