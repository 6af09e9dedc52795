"""Two gloo processes train the same run as one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.forked import environments
from tests.train.gradients import COUNTS, save_gradients
from tests.train.runs import finish, read_outcome, records, start, started, write_config
from train import run
from train.distributed import World, world_of
from train.spec.config import RunConfig


def together(config: Path, *arguments: str, code: int = 0) -> None:
    for process in [start(config, *arguments, env=env) for env in environments(2)]:
        finish(process, code)


def losses(folder: Path, kind: str, name: str = "loss") -> list[float]:
    return [r["metrics"][name] for r in records(folder) if r["kind"] == kind]


def test_two_processes_train_as_one_also_through_a_change_of_their_number(tmp_path: Path, tiny: RunConfig) -> None:
    # The last step has 3 sequences: one rank gets one, the other two. Validation has 10 for 2 ranks.
    one, two, changed = (tmp_path / name for name in ("one", "two", "changed"))
    finish(start(write_config(one, tiny)))
    together(write_config(two, tiny))
    config = write_config(changed, tiny)
    together(config, "--until", "1000")  # a validation is due there anyway
    finish(start(config))
    for folder in (two, changed):
        assert losses(folder, "train") == pytest.approx(losses(one, "train"), abs=1e-6)
        assert losses(folder, "validation") == pytest.approx(losses(one, "validation"), abs=1e-6)
        assert losses(folder, "train", "grad_norm") == pytest.approx(losses(one, "train", "grad_norm"), rel=1e-5)
    assert read_outcome(two)["world_size"] == 2


def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path, tiny: RunConfig) -> None:
    micro = replace(tiny, parallel=replace(tiny.parallel, micro_batch_sequences=2))
    config = write_config(tmp_path / "run", micro)
    words = ("tests.train.gradients", str(config), str(tmp_path / "2.pt"))
    processes = [started(*words, env=env) for env in environments(2)]
    save_gradients(config, tmp_path / "1.pt", World())
    for process in processes:
        finish(process)
    ones, twos = torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "2.pt")
    for sequences in COUNTS:
        one, two = ones[sequences], twos[sequences]
        assert abs(one["loss"] - two["loss"]) <= 1e-6
        for name, grad in one["grads"].items():
            error = (two["grads"][name] - grad).norm() / grad.norm()
            assert error <= 1e-5, name


def test_a_stop_signal_to_one_rank_stops_both_with_a_checkpoint(tmp_path: Path, tiny: RunConfig) -> None:
    folder = tmp_path / "run"
    budget = replace(tiny.budget, tokens=16 * 8 * 100_000)
    config = write_config(folder, replace(tiny, budget=budget))
    ranks = [start(config, env=env) for env in environments(2)]
    while not (folder / "metrics.jsonl").exists() or len(records(folder)) < 5:
        assert ranks[0].poll() is None, ranks[0].communicate()
        time.sleep(0.01)
    ranks[1].terminate()
    for process in ranks:
        finish(process, run.INTERRUPTED)
    assert len(list((folder / "checkpoints").iterdir())) == 1


def test_the_environment_is_read_as_torchrun_sets_it() -> None:
    assert world_of({}) == World()
    env = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert world_of(env) == World(3, 4, 1, "a", 1)
    with pytest.raises(ValueError, match="MASTER_ADDR, MASTER_PORT not set"):
        world_of({"WORLD_SIZE": "2", "RANK": "0"})
