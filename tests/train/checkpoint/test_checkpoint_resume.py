"""Runs really killed and started again end with bitwise the same losses."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.once import folder_once
from tests.train.faults import BRAKE
from tests.train.runs import faulty, finish, read_outcome, records, start, values, with_runtime, write_config
from tests.warm import Started
from train import run
from train.checkpoint import manager, save
from train.checkpoint.layout import newest
from train.runtime.signals import StopFlag
from train.spec.config import BudgetConfig, RunConfig
from train.trainer import Trainer


@pytest.fixture(scope="session")
def reference(session_folder: Path, tiny: RunConfig) -> Path:
    """The folder of the same run, never interrupted."""

    def fill(folder: Path) -> None:
        finish(start(write_config(folder / "run", tiny)))

    return folder_once(session_folder / "undisturbed", fill) / "run"


def signalled(config: Path, step: int, number: signal.Signals, saved: bool = False) -> Started:
    """Start the run and send it a signal once metrics reach `step` and, if `saved`, a checkpoint is whole.

    It takes no step after the next two until it has the signal: on a busy machine it would be over before that comes.
    """
    folder = config.parent
    (folder / BRAKE).touch()
    process = faulty(config, "brake", "--step", str(step + 3), "--rank", "0")
    path = folder / "metrics.jsonl"
    while (
        not path.exists()
        or path.read_text().count('"train"') < step
        or (saved and not any((folder / "checkpoints").glob("step-*/manifest.json")))
    ):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(number)
    (folder / BRAKE).unlink()
    return process


def assert_equal_runs(folder: Path, reference: Path, paused: int | None = None) -> None:
    """Compare two runs bitwise; `paused`: step at which `--until` paused, and validated, only the first."""
    assert [row for row in values(folder) if row[:2] != ("validation", paused)] == values(reference)
    ours, theirs = read_outcome(folder), read_outcome(reference)
    for key in ("state", "step", "tokens", "flops", "params", "loss", "schedule_complete"):
        assert ours[key] == theirs[key]


def test_killed_twice(tmp_path: Path, tiny: RunConfig, reference: Path) -> None:
    folder = tmp_path / "killed"
    # A checkpoint that stays waits for the one before it, so a slow disk cannot leave the run without any.
    config = write_config(folder, with_runtime(tiny, checkpoint_seconds=0.0, checkpoint_keep_steps=2))
    for step in (3, 17):
        # A step's checkpoint is written beside the next steps: a kill right after step 3 may come before the first.
        process = signalled(config, step, signal.SIGKILL, saved=True)
        out = process.communicate()[0]
        assert process.returncode == -signal.SIGKILL
        assert ("resumed" in out) == (step == 17)
    assert not (folder / "outcome.json").exists()
    assert "resumed" in finish(start(config))
    assert_equal_runs(folder, reference)


def test_checkpoints_stay_by_policy_and_name_their_code(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE_VERSION", "0123456789ab-clean")
    folder = tmp_path / "kept"
    finish(start(write_config(folder, with_runtime(tiny, checkpoint_keep=3, checkpoint_keep_steps=10))))
    found = sorted((folder / "checkpoints").glob("step-*"))
    assert [int(path.name.removeprefix("step-")) for path in found] == [10, 20, read_outcome(folder)["step"]]
    assert {json.loads((path / "manifest.json").read_text())["code"] for path in found} == {"0123456789ab-clean"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_stopped_by_a_signal_it_saves_and_says_so(
    tmp_path: Path, tiny: RunConfig, reference: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "stopped"
    config = write_config(folder, with_runtime(tiny, checkpoint_seconds=0.01))
    process = signalled(config, 9, number)
    assert f"stopped by {number.name}" in finish(process, code=run.INTERRUPTED)
    assert len(list((folder / "checkpoints").glob("step-*"))) >= 1
    finish(start(config))
    assert_equal_runs(folder, reference)


def test_a_torn_checkpoint_costs_only_the_steps_since_the_previous_one(
    tmp_path: Path, tiny: RunConfig, reference: Path
) -> None:
    folder = tmp_path / "torn"
    config = write_config(folder, tiny)
    for until in (1000, 1900):  # validations are due there anyway
        finish(start(config, "--until", str(until)))
    newest = max((folder / "checkpoints").glob("step-*")) / "__0_0.distcp"
    newest.write_bytes(newest.read_bytes()[:1000])
    out = finish(start(config))
    assert "is incomplete" in out
    assert "resumed from step-000000008" in out
    assert_equal_runs(folder, reference, paused=16)


def test_until_stops_at_the_first_step_boundary_and_changes_nothing(
    tmp_path: Path, tiny: RunConfig, reference: Path
) -> None:
    folder = tmp_path / "rungs"
    config = write_config(folder, tiny)
    finish(start(config, "--until", "1000"))  # steps of 128 tokens: the eighth ends at 1,024
    assert max(r["tokens"] for r in records(folder)) == 1024
    assert not (folder / "outcome.json").exists()
    finish(start(config, "--until", "1024"))
    assert max(r["tokens"] for r in records(folder)) == 1024
    finish(start(config, "--until", "1500"))
    assert ("validation", 12) in {row[:2] for row in values(folder)}
    finish(start(config, "--until", str(10**9)))
    assert_equal_runs(folder, reference, paused=12)


def test_a_resumed_run_draws_the_random_numbers_that_it_would_have_drawn(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps draw none by themselves, but what a model or a kernel draws has to go on as it would have."""
    drawn: list[tuple[int, float]] = []
    step = Trainer.train_step

    def noted(self: Trainer, *given: Any, **more: Any) -> Any:
        drawn.append((self.state.step, torch.rand(()).item()))
        return step(self, *given, **more)

    monkeypatch.setattr(Trainer, "train_step", noted)
    assert tiny.batch.tokens is not None
    config = replace(tiny, budget=BudgetConfig(tokens=8 * tiny.batch.tokens))
    assert run.main(["--config", str(write_config(tmp_path / "whole", config))]) == 0
    whole = drawn.copy()
    drawn.clear()
    halves = ["--config", str(write_config(tmp_path / "halves", config))]
    assert run.main([*halves, "--until", str(5 * tiny.batch.tokens)]) == 0
    assert run.main(halves) == 0
    assert [number for number, _ in whole] == list(range(8))
    assert len({value for _, value in whole}) == 8 and drawn == whole


def test_stopped_where_it_is_saved_already_it_saves_nothing_and_a_torn_outcome_is_no_end(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(flag: StopFlag) -> None:
        flag.received = signal.SIGTERM

    config = write_config(tmp_path / "run", tiny)
    with monkeypatch.context() as patch:
        patch.setattr(StopFlag, "install", lambda flag: None)
        assert run.main(["--config", str(config), "--until", "1000"]) == run.REACHED
    (found,) = (config.parent / "checkpoints").glob("step-*/manifest.json")
    before = found.stat()
    (config.parent / "outcome.json").write_text('{"state": "comp')  # as a crash of the machine may leave a new file
    monkeypatch.setattr(StopFlag, "install", stopped)
    assert run.main(["--config", str(config)]) == run.INTERRUPTED
    assert (found.stat().st_ino, found.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    said = capsys.readouterr()
    assert "outcome.json is incomplete" in said.err and "stopped by SIGTERM at step 8" in said.out


def test_a_run_whose_every_save_fails_is_given_up_also_where_checkpoints_stay(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StopFlag, "install", lambda flag: None)
    monkeypatch.setattr(save, "stage", full)
    monkeypatch.setattr(manager, "given_up", lambda unsaved, interval: True)
    config = write_config(tmp_path / "run", with_runtime(tiny, checkpoint_keep_steps=1))
    assert run.main(["--config", str(config)]) == run.FAILED
    said = capsys.readouterr().err
    assert "error: the run's state could not be saved: no checkpoint could be saved for" in said
    assert f"No space left on device in {config.parent / 'checkpoints'}; free space there" in said


@pytest.mark.parametrize("place", ["checkpoints", "metrics.jsonl"])
def test_where_a_run_cannot_write_it_is_refused_at_once_by_the_path(
    tmp_path: Path, tiny: RunConfig, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StopFlag, "install", lambda self: None)
    config = write_config(tmp_path / "run", tiny)
    if place == "checkpoints":
        (config.parent / place).touch()
    else:
        (config.parent / place).mkdir()
    assert run.main(["--config", str(config)]) == run.REFUSED
    # A thread of a test before, whose disk was full, may say so now.
    said = [line for line in capsys.readouterr().err.splitlines() if str(config.parent) in line]
    assert len(said) == 1 and said[0].startswith(f"error: {config.parent / place}: ")
    assert not (config.parent / "outcome.json").exists()
    assert {path.name for path in config.parent.iterdir()} == {"config.yaml", place}, "no trial file is left"


def test_a_checkpoint_of_another_config_is_refused(tmp_path: Path, tiny: RunConfig) -> None:
    folder = tmp_path / "run"
    finish(start(write_config(folder, tiny), "--until", "128"))
    other = tmp_path / "other"
    config = write_config(other, replace(tiny, optim=replace(tiny.optim, weight_decay=0.3)))
    shutil.copytree(folder / "checkpoints", other / "checkpoints")
    out = finish(start(config), code=run.REFUSED)
    assert "optim.weight_decay was 0.1, is 0.3" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(("keep", "first"), [(5, 6), (8, 8)], ids=["training", "the validation alone"])
def test_records_that_were_lost_below_the_checkpoint_are_said_to_be_missing(
    tmp_path: Path, tiny: RunConfig, keep: int, first: int
) -> None:
    folder = tmp_path / "cut"
    config = write_config(folder, tiny)
    finish(start(config, "--until", "1024"))
    path = folder / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines(keepends=True) if '"train"' in line]
    path.write_text("".join(lines[:keep]))
    out = finish(start(config))
    assert "has lost records up to step 8" in out and "remove the checkpoints after them" in out
    (told,) = [record for record in records(folder) if record["kind"] == "missing"]
    assert told["step"] == 8 and told["metrics"] == {"from_step": first, "to_step": 8}
    finish(start(config))
    assert sum(record["kind"] == "missing" for record in records(folder)) == 1


@pytest.mark.parametrize(("before", "after"), [(5, 1), (5, 2), (1, 5)])
def test_a_run_that_goes_on_writing_more_often_has_lost_nothing(
    tmp_path: Path, tiny: RunConfig, before: int, after: int
) -> None:
    folder = tmp_path / "run"
    config = write_config(folder, with_runtime(tiny, log_steps=before))
    assert run.main(["--config", str(config), "--until", "1024"]) == 0
    config.write_text(yaml.safe_dump(asdict(with_runtime(tiny, log_steps=after))))
    assert run.main(["--config", str(config), "--until", "1536"]) == 0
    assert "missing" not in {record["kind"] for record in records(folder)}
    found = newest(folder / "checkpoints")
    assert found is not None
    steps = [record["step"] for record in records(folder) if record["kind"] == "train"]
    assert found.manifest["notes"]["recorded"] == steps[-1] == 12 - 12 % after
