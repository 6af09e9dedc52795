"""Two ranks whose moments wait on the CPU, their copies compared at every step: the numbers of moments that stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.forked import environments
from tests.train.runs import finish, start, values, with_runtime, write_config
from train.spec.config import HealthConfig, MemoryConfig, ParallelConfig, RunConfig

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices here")

LAYOUTS = {
    "copies": ParallelConfig(strategy="ddp", dp_replicate=2),
    "shards": ParallelConfig(strategy="fsdp", dp_shard=2, dp_replicate=1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moments_that_wait_on_the_cpu_change_no_number(tmp_path: Path, tiny: RunConfig, layout: str) -> None:
    looked = replace(
        with_runtime(tiny, device="cuda", deterministic=True),
        parallel=LAYOUTS[layout],
        health=HealthConfig(desync_steps=1),
    )
    configs = [
        write_config(tmp_path / name, replace(looked, memory=MemoryConfig(offload=name)))
        for name in ("none", "optimizer")
    ]
    for until in (1280, looked.budget.tokens):  # saved on the way, and on from there; both runs start at once
        both = [
            start(config, "--until", str(until), env=environment)
            for config in configs
            for environment in environments(2)
        ]
        for rank in both:
            finish(rank)
    assert values(tmp_path / "optimizer") == values(tmp_path / "none")
