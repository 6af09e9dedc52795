"""Two gloo processes train the same run as one."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.forked import environments
from tests.train.gradients import COUNTS, save_gradients
from tests.train.runs import LIMIT_SECONDS, finish, read_outcome, records, records_so_far, start, started, write_config
from train import run
from train.runtime.distributed import World, first_host, leave, world_of
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
    while len(records_so_far(folder)) < 5:
        assert ranks[0].poll() is None, ranks[0].communicate()
        time.sleep(0.01)
    ranks[1].terminate()
    for process in ranks:
        finish(process, run.INTERRUPTED)
    assert len(list((folder / "checkpoints").iterdir())) == 1


# torch's store looks its peer's name up, and says so where the machine's name service does not answer (no network).
NO_NAME_SERVICE = re.compile(r"^\[W.*\[c10d\] The hostname of the client socket cannot be retrieved\. err=-3\n", re.M)

BIASED = {"experts": 4, "experts_per_token": 1, "router_bias_speed": 0.05, "balance_weight": 0.0}


@pytest.mark.parametrize(
    ("parallel", "model", "commands"),
    [
        ({"dp_replicate": 2}, BIASED, (["--until", "1000"], [])),
        ({"dp_replicate": 1, "dp_shard": 2}, {}, (["--until", "1000"], [])),
        ({"dp_replicate": 1, "dp_shard": 2, "strategy": "fsdp1"}, {}, (["--unsaved"],)),
        ({"dp_replicate": 1, "tp": 2}, {"kv_heads": 2}, (["--unsaved"],)),
        ({"dp_replicate": 1, "pp": 2, "micro_batch_sequences": 1}, {}, (["--unsaved"],)),
    ],
    ids=["ddp", "fsdp", "fsdp1", "tp", "pp"],
)
def test_ranks_say_nothing_on_standard_error(
    tmp_path: Path,
    tiny: RunConfig,
    parallel: dict[str, Any],
    model: dict[str, Any],
    commands: tuple[list[str], ...],
) -> None:
    """Neither torch's warnings, of Python or of C++, nor what a library finds left of it at exit."""
    changed = replace(tiny, model=replace(tiny.model, **model), parallel=replace(tiny.parallel, **parallel))
    config = write_config(tmp_path / "run", replace(changed, budget=replace(tiny.budget, tokens=2048)))
    for words in commands:
        for process in [start(config, *words, env=env) for env in environments(2)]:
            _, err = process.communicate(timeout=LIMIT_SECONDS)
            assert (process.returncode, NO_NAME_SERVICE.sub("", err)) == (0, "")


def test_the_environment_is_read_as_torchrun_sets_it() -> None:
    assert world_of({}) == World()
    env = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert world_of(env) == World(3, 4, 1, "a", 1)
    with pytest.raises(ValueError, match="MASTER_ADDR, MASTER_PORT not set"):
        world_of({"WORLD_SIZE": "2", "RANK": "0"})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, World(5, 8, 1, "n07", 20000 + 17 * 7)),
        ({"SLURM_STEP_ID": "3"}, World(5, 8, 1, "n07", 20000 + 17 * 7 + 3)),  # steps of one job, side by side
        ({"MASTER_ADDR": "n1", "MASTER_PORT": "9"}, World(5, 8, 1, "n1", 9)),
        ({"SLURM_STEP_NUM_NODES": "1"}, World(5, 8, 1, "127.0.0.1", 20000 + 17 * 7)),
        ({"SLURM_STEP_NUM_TASKS": "1"}, World()),  # a script in an allocation of eight tasks is no rank
        ({"WORLD_SIZE": "1"}, World()),  # who says so is alone, whatever SLURM says
        ({"SLURM_JOB_ID": "4294967295"}, World(5, 8, 1, "n07", 20000 + 17 * 4294967295 % 12000)),
    ],
)
def test_the_environment_is_read_as_srun_sets_it(changes: dict[str, str], wanted: World) -> None:
    srun = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "n[07-09],m1",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",  # of a login node, where no rank is
    }
    assert world_of(srun | changes) == wanted
    assert wanted.port < 32768, "below the ports that the kernel gives to anyone"


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [("n1", "n1"), ("n1,m[2-3]", "n1"), ("n[1-4]", "n1"), ("n[007,009-010]-ib,m1", "n007-ib"), ("a-b.c[3]", "a-b.c3")],
)
def test_the_first_node_of_a_list(nodes: str, wanted: str) -> None:
    assert first_host(nodes) == wanted


def test_ranks_wait_for_each_other_before_they_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch 2.11 gloo aborts a rank whose peer has gone while it is still talking."""
    done: list[str] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "barrier", lambda: done.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("gone"))
    leave(World(0, 2))
    assert done == ["barrier", "gone"]
