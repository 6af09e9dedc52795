"""Runs that one process trains one after the other: the numbers of runs alone, and nothing left of the one before."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from study.process.trainers import TrainerStart, WarmTrainers
from tests.train.runs import finish, start, values, write_config
from train.runtime import leftovers
from train.runtime.leftovers import Before
from train.serve import OF_AN_ATTEMPT, Attempt, same_graphs, suits
from train.spec.config import CompileConfig, MemoryConfig, ProfileConfig, RunConfig


def attempt(**environment: str) -> Attempt:
    return Attempt(("--config", "config.yaml"), environment, "/here")


@pytest.mark.parametrize(
    ("change", "suited"),
    [
        (lambda run: replace(run, seed=7), True),
        (lambda run: replace(run, model=replace(run.model, layers=5)), True),
        (lambda run: replace(run, optim=replace(run.optim, lr=1.0), data=replace(run.data, sequence_length=8)), True),
        (lambda run: replace(run, parallel=replace(run.parallel, micro_batch_sequences=2)), True),
        (lambda run: replace(run, runtime=replace(run.runtime, threads=2)), False),
        (lambda run: replace(run, runtime=replace(run.runtime, deterministic=True)), False),
        (lambda run: replace(run, compile=CompileConfig(blocks=True)), False),
        (lambda run: replace(run, precision=replace(run.precision, name="bf16")), False),
        (lambda run: replace(run, profile=ProfileConfig(start=3)), False),
    ],
)
def test_a_process_suits_runs_that_differ_in_science_only(
    change: Callable[[RunConfig], RunConfig], suited: bool, tiny: RunConfig
) -> None:
    assert suits(attempt(), tiny, attempt(), change(tiny)) is suited


def test_a_process_suits_an_attempt_with_its_environment(tiny: RunConfig) -> None:
    before = attempt(HOME="a", HEARTBEAT="x")
    assert suits(before, tiny, attempt(HOME="a", **dict.fromkeys(OF_AN_ATTEMPT, "y")), tiny)
    assert not suits(before, tiny, attempt(HOME="b"), tiny)
    assert not suits(before, tiny, attempt(HOME="a", OMP_NUM_THREADS="2"), tiny)
    assert not suits(before, tiny, replace(attempt(HOME="a"), folder="/there"), tiny)


@pytest.mark.parametrize(
    "ran", [{"profile": ProfileConfig(start=3)}, {"memory": MemoryConfig(checkpointing="budget")}], ids=str
)
def test_after_what_measures_a_process_none_follows(ran: dict[str, Any], tiny: RunConfig) -> None:
    run = replace(tiny, **ran)
    assert not suits(attempt(), run, attempt(), run)


def test_compiled_code_serves_runs_of_its_shapes(tiny: RunConfig) -> None:
    assert same_graphs(tiny, replace(tiny, seed=7, optim=replace(tiny.optim, lr=1.0)))
    assert not same_graphs(tiny, replace(tiny, model=replace(tiny.model, layers=5)))
    assert not same_graphs(tiny, replace(tiny, parallel=replace(tiny.parallel, micro_batch_sequences=2)))
    graphs = replace(tiny, compile=CompileConfig(blocks=True, cuda_graphs=True))
    assert not same_graphs(graphs, graphs)


def test_what_a_run_changes_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_threads", lambda: None)  # pytest has some
    monkeypatch.setattr(leftovers, "_children", lambda: None)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    random.seed(5)
    drawn = torch.rand(3), random.random()
    torch.manual_seed(5)
    random.seed(5)
    handler, threads = signal.getsignal(signal.SIGUSR2), torch.get_num_threads()
    before = Before({signal.SIGUSR2: handler})

    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    os.environ["LEFT"] = "behind"
    monkeypatch.chdir("/")
    torch.set_num_threads(threads + 1)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.rand(100)
    random.random()

    assert before.restore(tmp_path / "run") is None
    assert signal.getsignal(signal.SIGUSR2) is handler
    assert "LEFT" not in os.environ
    assert Path.cwd() == tmp_path
    assert torch.get_num_threads() == threads
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory is True  # type: ignore[attr-defined]
    assert torch.equal(torch.rand(3), drawn[0])
    assert random.random() == drawn[1]


def test_an_open_file_of_the_run_is_told(tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("w"):
        assert leftovers._files(tmp_path) == f"open file {tmp_path / 'metrics.jsonl'}"
        assert leftovers._files(tmp_path / "another") is None
    assert leftovers._files(tmp_path) is None


def test_a_thread_of_the_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None: ...

    thread = threading.Thread(target=wait, name="reader")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), thread])
    assert leftovers._threads() == f"thread reader of {__name__}"
    monkeypatch.setattr(leftovers, "THREADS", (__name__,))
    assert leftovers._threads() is None


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmTrainers]:
    monkeypatch.delenv("STUDY_TRAINER", raising=False)
    started = WarmTrainers()
    yield started
    started.close()


def test_runs_of_one_process_have_the_numbers_of_runs_alone(
    tmp_path: Path, tiny: RunConfig, trainers: WarmTrainers
) -> None:
    """In both orders, with another size between; one that cannot be read ends the process with its exit code."""
    other = replace(tiny, seed=5, model=replace(tiny.model, layers=3))
    alone = {name: start(write_config(tmp_path / name, run)) for name, run in (("a", tiny), ("b", other))}
    pids = []
    for name, run in (("a1", tiny), ("b1", other), ("a2", tiny)):
        pid, code = trained(trainers, write_config(tmp_path / name, run))
        assert code == 0, (tmp_path / name / "stderr").read_text()
        pids.append(pid)
    assert len(set(pids)) == 1
    for name, process in alone.items():
        finish(process)
        for again in tmp_path.glob(f"{name}[12]"):
            assert values(again) == values(tmp_path / name)
            assert weights(again) == weights(tmp_path / name)
            assert "step 30" in (again / "stdout").read_text()

    config = write_config(tmp_path / "c", tiny)
    config.write_text("model: {}\n")
    assert trained(trainers, config)[1] == 2
    assert "error: " in (tmp_path / "c" / "stderr").read_text()


def trained(trainers: WarmTrainers, config: Path) -> tuple[int, int | None]:
    """Train a run; return the process that did, and its exit code."""
    folder = config.parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEARTBEAT": str(folder / "beat")}
    process = trainers.start(TrainerStart(config, None, environment, folder / "stdout", folder / "stderr"))
    while process.poll() is None:
        time.sleep(0.01)
    return process.pid, process.returncode


def weights(run: Path) -> list[bytes]:
    """Return what a run's last checkpoint holds of its weights and moments."""
    return [path.read_bytes() for path in sorted(run.glob("checkpoints/*/*.distcp"))]
