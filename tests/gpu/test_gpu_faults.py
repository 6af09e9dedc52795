"""What only GPUs can show of a run that goes wrong: their memory runs out, a rank of NCCL's hangs or is killed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from study.failures.kinds import Evidence, classify
from tests.forked import environments
from tests.train.faults import BRAKE
from tests.train.runs import LIMIT_SECONDS, faulty, finish, records, records_so_far, start, with_runtime, write_config
from train import run
from train.spec.config import ModelConfig, ParallelConfig, RunConfig
from train.spec.resolve import resolve

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
pair = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices here")


@pytest.fixture(scope="module")
def sharded(tiny: RunConfig) -> RunConfig:
    """The tiny run over two GPUs that share weights and moments; a checkpoint after every step."""
    layout = ParallelConfig(dp_replicate=1, dp_shard=2)
    return with_runtime(replace(tiny, parallel=layout), device="cuda", checkpoint_seconds=0.0, timeout_seconds=15.0)


def test_a_gpu_without_room_is_known_by_the_last_words(tmp_path: Path, tiny: RunConfig) -> None:
    model = ModelConfig(width=1024, layers=8, head_dim=64, kv_heads=4)  # 1.6 GB with gradients and moments
    config = with_runtime(resolve(replace(tiny, model=model)), device="cuda")
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - (1200 << 20), dtype=torch.uint8, device="cuda")  # room for CUDA itself and little else
    try:
        process = start(write_config(tmp_path / "run", config))
        _, err = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        del taken
        torch.cuda.empty_cache()
    assert process.returncode == run.FAILED, err
    assert classify(Evidence(returncode=process.returncode, stderr=err)).kind == "gpu_memory", err


@pair
def test_a_rank_that_hangs_leaves_stacks_and_the_messages_of_nccl(tmp_path: Path, sharded: RunConfig) -> None:
    folder = tmp_path / "run"
    config = write_config(folder, sharded)
    ranks = [faulty(config, "hang", "--step", "12", env=env) for env in environments(2)]
    said = [process.communicate(timeout=LIMIT_SECONDS)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [run.FAILED, run.FAILED], said
    assert "fault_that_waits" in said[1], "the stack of the rank that hangs"
    assert classify(Evidence(returncode=run.FAILED, stderr=said[0])).kind == "hang"
    messages = json.loads((folder / "flight-rank-0.json").read_text())["entries"]
    assert any("nccl:" in message["profiling_name"] for message in messages)


@pair
def test_a_killed_rank_ends_the_run_which_goes_on(tmp_path: Path, sharded: RunConfig) -> None:
    undisturbed = tmp_path / "undisturbed"
    reference = write_config(undisturbed, sharded)
    for process in [start(reference, env=env) for env in environments(2)]:
        finish(process)
    folder = tmp_path / "run"
    config = write_config(folder, with_runtime(sharded, checkpoint_keep_steps=2))
    (folder / BRAKE).touch()
    ranks = [faulty(config, "brake", "--step", "8", env=env) for env in environments(2)]
    while max((r["step"] for r in records_so_far(folder)), default=0) < 5:
        assert ranks[0].poll() is None, ranks[0].communicate()
        time.sleep(0.01)
    ranks[1].kill()
    (folder / BRAKE).unlink()
    assert ranks[0].communicate(timeout=LIMIT_SECONDS) is not None
    assert ranks[0].returncode not in (0, None), "the other one notices, or is ended by its watchdog"
    again = [start(config, env=env) for env in environments(2)]
    said = [finish(process) for process in again]
    assert "resumed" in said[0]
    losses = [[r["metrics"]["loss"] for r in records(each) if r["kind"] == "train"] for each in (undisturbed, folder)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
