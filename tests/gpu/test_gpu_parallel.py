"""Every layout on four GPUs through NCCL against one GPU: each weight's gradient, 20 losses and gradient norms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.parallel import cells, pipelines
from tests.train.parallel.ranks import line
from tests.train.parallel.test_parallel_parity import failures, table

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 4, reason="fewer than four CUDA devices here"),
    pytest.mark.slow,
]

GPU = tuple(cell for cell in cells.EAGER if "process" not in cell.name)
GPU_COMPILED = (*cells.COMPILED, *cells.MORE_COMPILED)
GPU_PIPELINES = pipelines.PIPELINES


@pytest.mark.parametrize("chosen", ["GPU", "GPU_COMPILED", "GPU_PIPELINES"])
def test_every_layout_trains_as_one_gpu_does(chosen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(f"tests.gpu.test_gpu_parallel:{chosen}", tmp_path, "cuda")
    with capsys.disabled():
        print("\n" + "\n".join(line(row) for row in rows))
    bad = failures(globals()[chosen], rows, slack=10.0)
    assert not bad, "\n".join(bad)
