"""Runs that one process trains one after the other on a GPU: it stays, and their numbers are those of runs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from study.process.trainers import WarmTrainers
from tests.train.runs import finish, start, values, with_runtime, write_config
from tests.train.test_serve import trained, trainers
from train.spec.config import CompileConfig, RunConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

__all__ = ["trainers"]


@pytest.mark.parametrize("compiled", [False, True])
def test_runs_of_one_process_have_the_numbers_of_runs_alone(
    compiled: bool, tmp_path: Path, tiny: RunConfig, trainers: WarmTrainers
) -> None:
    base = replace(with_runtime(tiny, device="cuda", deterministic=True), compile=CompileConfig(blocks=compiled))
    other = replace(base, seed=5, model=replace(base.model, layers=3))
    alone = {"a": base, "b": other, "c": replace(other, seed=6)}
    # Most of what a lone run takes is its start: they start meanwhile, all at once.
    started = [start(write_config(tmp_path / name, run)) for name, run in alone.items()]
    pids = set()
    # c has the shapes of b: what was compiled for b serves it.
    for name, run in (("a1", base), ("b1", other), ("c1", alone["c"]), ("a2", base)):
        pid, code = trained(trainers, write_config(tmp_path / name, run))
        assert code == 0, (tmp_path / name / "stderr").read_text()
        pids.add(pid)
    assert len(pids) == 1
    for process in started:
        finish(process)
    for name in alone:
        for again in tmp_path.glob(f"{name}[12]"):
            assert values(again) == values(tmp_path / name)
