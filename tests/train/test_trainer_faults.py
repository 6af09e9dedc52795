"""Two ranks, and one of them killed, hung, out of disk or with gradients that are no numbers: how a run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.forked import environments
from tests.once import folder_once
from tests.processes import has_ended
from tests.train.faults import BRAKE
from tests.train.runs import (
    LIMIT_SECONDS,
    REPOSITORY,
    faulty,
    finish,
    read_outcome,
    records,
    records_so_far,
    start,
    values,
    with_runtime,
    write_config,
)
from tests.warm import Started
from train import run
from train.checkpoint.layout import newest
from train.checkpoint.manager import given_up
from train.spec.config import ParallelConfig, RunConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def sharded(tiny: RunConfig) -> RunConfig:
    """The tiny run over two ranks that share weights and moments; a checkpoint after every step."""
    layout = ParallelConfig(dp_replicate=1, dp_shard=2)
    return with_runtime(replace(tiny, parallel=layout), checkpoint_seconds=0.0)


@pytest.fixture(scope="session")
def reference(session_folder: Path, sharded: RunConfig) -> Path:
    """The folder of that run, never disturbed."""

    def fill(folder: Path) -> None:
        together(write_config(folder / "run", with_runtime(sharded, checkpoint_seconds=1e9)))

    return folder_once(session_folder / "undisturbed-ranks", fill) / "run"


def begin(config: Path, *arguments: str) -> list[Started]:
    return [start(config, *arguments, env=env) for env in environments(2)]


def together(config: Path, *arguments: str, code: int = 0) -> list[str]:
    return [finish(process, code) for process in begin(config, *arguments)]


def faulties(config: Path, *fault: str) -> list[Started]:
    return [faulty(config, *fault, env=env) for env in environments(2)]


def wait_for_step(processes: Sequence[Started], folder: Path, step: int) -> None:
    while max((r["step"] for r in records_so_far(folder)), default=0) < step:
        assert processes[0].poll() is None, processes[0].communicate()
        time.sleep(0.01)


def assert_as_undisturbed(folder: Path, reference: Path) -> None:
    """Compare every record but validations that only one of them has, as where `--until` stopped."""
    theirs = {row[:3]: row for row in values(reference)}
    ours = {row[:3]: row for row in values(folder)}
    assert theirs == {key: ours[key] for key in theirs}
    assert all(kind == "validation" for kind, *_ in ours.keys() - theirs.keys())
    outcome, undisturbed = read_outcome(folder), read_outcome(reference)
    for name in ("state", "step", "tokens", "loss"):
        assert outcome[name] == undisturbed[name]


def test_a_killed_rank_ends_the_run_which_goes_on_bitwise_twice_in_a_row(
    tmp_path: Path, sharded: RunConfig, reference: Path
) -> None:
    folder = tmp_path / "run"
    # A checkpoint that stays waits for the one before it: however slow the disk, there is one when a rank is killed.
    config = write_config(folder, with_runtime(sharded, checkpoint_keep_steps=2))
    for number, step in enumerate((5, 17)):
        (folder / BRAKE).touch()
        ranks = faulties(config, "brake", "--step", str(step + 3))
        wait_for_step(ranks, folder, step)
        ranks[1 - number].kill()
        (folder / BRAKE).unlink()
        said = [process.communicate(timeout=LIMIT_SECONDS) for process in ranks]
        assert ranks[1 - number].returncode == -signal.SIGKILL
        assert ranks[number].returncode == run.FAILED, "the other one notices and fails by itself"
        lost = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
        assert any(words in said[number][1] for words in lost), said[number][1]
    assert "resumed from" in together(config)[0]
    assert_as_undisturbed(folder, reference)


def test_a_rank_that_hangs_ends_the_run_with_the_stacks_of_all(tmp_path: Path, sharded: RunConfig) -> None:
    folder = tmp_path / "run"
    config = write_config(folder, with_runtime(sharded, timeout_seconds=20.0))
    ranks = faulties(config, "hang", "--step", "5")
    said = [process.communicate(timeout=LIMIT_SECONDS)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [run.FAILED, run.FAILED]
    assert all("TIMEOUT" in err and "has not moved for 20 s" in err for err in said)
    assert "fault_that_waits" in said[1], "the stack of the rank that hangs"
    assert "all_reduce" in said[0] or "wait" in said[0], "the stack of the one that waits for it"
    assert "rank 1: step 4, in fault_that_waits" in said[0], "the first rank says where each of them stands"
    begun = [len(json.loads((folder / f"flight-rank-{n}.json").read_text())["entries"]) for n in (0, 1)]
    assert begun[0] > begun[1] > 0, "the first has begun a message that the one that hangs has not"
    found = newest(folder / "checkpoints")
    assert found is not None
    assert found.progress["step"] <= 4, "how many are skipped while one is written is the disk's affair"


def test_gradients_of_one_rank_that_are_no_numbers_are_skipped_by_all(
    tmp_path: Path, sharded: RunConfig, reference: Path
) -> None:
    folder = tmp_path / "run"
    ranks = faulties(write_config(folder, sharded), "nan", "--step", "7")
    said = [finish(process) for process in ranks]
    assert "step 7: loss or gradient norm is not finite: skipped" in said[0]
    outcome = read_outcome(folder)
    assert (outcome["state"], outcome["step"], outcome["health"]["skipped_steps"]) == ("completed", 30, 1)
    before = [row for row in values(reference) if row[1] < 7]
    assert values(folder)[: len(before)] == before
    losses = {r["step"]: r["metrics"]["loss"] for r in records(folder) if r["kind"] == "train"}
    undisturbed = {r["step"]: r["metrics"]["loss"] for r in records(reference) if r["kind"] == "train"}
    # The weights of step 8 are those of step 7: close to, but not the same as without the fault.
    assert 0 < abs(losses[8] - undisturbed[8]) < 0.1


def test_a_disk_that_is_full_for_a_while_costs_those_checkpoints_only(
    tmp_path: Path, sharded: RunConfig, reference: Path
) -> None:
    folder = tmp_path / "run"
    # Checkpoints that stay wait for those before them: that of step 6 is tried, and over, before that of step 9 begins.
    staying = with_runtime(sharded, checkpoint_seconds=1e9, checkpoint_keep_steps=3)
    # The first rank's files are shards and metrics: records that find no room are written later.
    ranks = faulties(write_config(folder, staying), "full", "--step", "6", "--until-step", "12", "--rank", "0")
    said = [finish(process) for process in ranks]
    assert f"was not saved: rank 0: [Errno 27] File too large: '{folder}" in said[0]
    assert "metrics are kept in memory" in said[0]
    assert_as_undisturbed(folder, reference)
    found = {int(p.name.removeprefix("step-")) for p in (folder / "checkpoints").iterdir()}
    # Those of steps 3 and 9 are written beside the next steps: with room or without, as the disk and the machine go.
    assert found - {3, 9} == set(range(12, 31, 3))


def test_a_disk_that_stays_full_fails_the_run_and_keeps_the_last_checkpoint(tmp_path: Path, sharded: RunConfig) -> None:
    folder = tmp_path / "run"
    # Checkpoints that stay wait for those before them: that of step 10 is whole when step 15 is saved.
    staying = with_runtime(sharded, checkpoint_keep_steps=5)
    ranks = faulties(write_config(folder, staying), "full", "--step", "20")
    said = [finish(process, run.FAILED) for process in ranks]
    assert "error: the run's state could not be saved: rank 1" in said[0]
    assert not (folder / "outcome.json").exists()
    found = newest(folder / "checkpoints")
    assert found is not None
    assert 10 <= found.progress["step"] <= 20
    assert all(p.name.startswith("step-") for p in (folder / "checkpoints").iterdir()), "nothing is left behind"


def test_a_corrupted_shard_costs_the_steps_since_the_checkpoint_before(
    tmp_path: Path, sharded: RunConfig, reference: Path
) -> None:
    folder = tmp_path / "run"
    config = write_config(folder, with_runtime(sharded, checkpoint_seconds=1e9))
    for until in (1000, 2000):
        together(config, "--until", str(until))
    shard = max((folder / "checkpoints").glob("step-*")) / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    said = together(config)
    assert "is incomplete (__1_0.distcp is not what was written)" in said[0]
    assert "resumed from step-000000008" in said[0]
    assert_as_undisturbed(folder, reference)


def test_torchrun_that_dies_of_a_signal_leaves_no_rank_behind(tmp_path: Path, sharded: RunConfig) -> None:
    folder = tmp_path / "run"
    long = replace(sharded, budget=replace(sharded.budget, tokens=16 * 8 * 100_000))
    config = write_config(folder, with_runtime(long, checkpoint_seconds=1e9))
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "train.run", "--config", str(config)),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for_step([launcher], folder, 3)
    workers = [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]
    assert len(workers) >= 2
    launcher.send_signal(signal.SIGUSR1)  # which nobody told it to handle
    assert launcher.wait(timeout=LIMIT_SECONDS) == -signal.SIGUSR1
    limit = time.monotonic() + LIMIT_SECONDS
    while not all(map(has_ended, workers)):
        assert time.monotonic() < limit, "a rank is left behind"
        time.sleep(0.1)
    assert newest(folder / "checkpoints") is not None, "the ranks saved before they ended"


@pytest.mark.parametrize(
    ("unsaved", "interval", "over"),
    [(10, 1, False), (299, 1, False), (301, 1, True), (600, 600, False), (1800, 600, True)],
)
def test_a_run_that_cannot_save_for_long_is_given_up(unsaved: float, interval: float, over: bool) -> None:
    assert given_up(unsaved, interval) is over
