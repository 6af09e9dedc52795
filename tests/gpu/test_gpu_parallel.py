"""Every layout on several GPUs through NCCL against one GPU: each weight's gradient, losses and gradient norms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.parallel import cells, pipelines
from tests.train.parallel.cells import Cell
from tests.train.parallel.ranks import line
from tests.train.parallel.test_parallel_parity import failures, table

pytestmark = pytest.mark.slow

STEPS = 6
"""A graph is recorded, and replayed from then on, after three steps that were alike; the last one is short."""


def longer(chosen: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple(replace(cell, steps=STEPS) for cell in chosen)


GPU = longer(cell for cell in cells.EAGER if "process" not in cell.name)
GPU_COMPILED = longer((*cells.COMPILED, *cells.MORE_COMPILED))
GPU_PIPELINES = longer(pipelines.PIPELINES)
GPU_PAIR = longer(
    (
        Cell("cp 2", cells.parallel(cp=2), masked=True),
        Cell("compiled: cp 2", cells.parallel(cp=2), compile=cells.COMPILE, masked=True),
    )
)


@pytest.mark.parametrize(("chosen", "ranks"), [("GPU_PAIR", 2), ("GPU", 4), ("GPU_COMPILED", 4), ("GPU_PIPELINES", 4)])
def test_every_layout_trains_as_one_gpu_does(
    chosen: str, ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"fewer than {ranks} CUDA devices here")
    rows = table(f"tests.gpu.test_gpu_parallel:{chosen}", tmp_path, "cuda", ranks)
    with capsys.disabled():
        print("\n" + "\n".join(line(row) for row in rows))
    bad = failures(globals()[chosen], rows, slack=10.0)
    assert not bad, "\n".join(bad)
