"""The kernels in Triton's interpreter, whose switch is read when they are defined: in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.warm import warm

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted(path.name for path in Path(__file__).with_name("numerics").glob("test_*.py"))
IMPORTED = ("pytest", "hypothesis", "kernels", "tests.kernels.oracle", "torch._dynamo", "triton.runtime.interpreter")
INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels/numerics runs on the GPU itself")
@pytest.mark.parametrize("file", FILES)
def test_numerics_without_a_gpu(file: str, tmp_path: Path) -> None:
    started = warm(*IMPORTED, **INTERPRETED).start(
        "pytest",
        # A folder of its own: in the one of all sessions it would look for what those before have left.
        *(f"tests/kernels/numerics/{file}", "-n", "0", "--tb=short", "--basetemp", str(tmp_path / "tests")),
        cwd=REPOSITORY,
        env={**os.environ, **INTERPRETED},
    )
    said, _ = started.communicate()
    assert started.returncode == 0, said[-6000:]
    assert " passed" in said
