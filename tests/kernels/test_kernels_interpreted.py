"""The kernels in Triton's interpreter, whose switch is read when they are defined: in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.warm import warm

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted(path.name for path in Path(__file__).with_name("numerics").glob("test_*.py"))
INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels/numerics runs on the GPU itself")
@pytest.mark.parametrize("file", FILES)
def test_numerics_without_a_gpu(file: str) -> None:
    started = warm("pytest", "hypothesis", "kernels", "tests.kernels.oracle", **INTERPRETED).start(
        "pytest",
        *(f"tests/kernels/numerics/{file}", "-n", "0", "--tb=short"),
        cwd=REPOSITORY,
        env={**os.environ, **INTERPRETED},
    )
    said, _ = started.communicate()
    assert started.returncode == 0, said[-6000:]
    assert " passed" in said
