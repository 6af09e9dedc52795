"""The trainer's own traces: a slow loader is named, steps and phases are marked, and printed commands record."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from study.diagnosis.of_traces import Diagnosis, diagnose, read_traces
from study.diagnosis.recordings import recording, trace_commands
from study.diagnosis.trace import read_trace
from study.storage.layout import RunFolder
from tests.train.runs import write_config
from train import branch, run
from train.data.batch import Batch
from train.metrics.timers import Clock
from train.runtime.distributed import World
from train.spec.config import ProfileConfig, RunConfig
from train.trainer import Trainer

SLOW_SECONDS, SLOW_TIMES = 0.05, 5
"""How long a slow loader takes for a batch: at least so long, and so many times what the step before has taken."""
STEP_TOKENS = 8 * 16


def recorded(config: RunConfig, folder: Path, slow: bool) -> Diagnosis:
    """Return the diagnosis of four steps of a run, whose loader may be slow."""
    trainer = Trainer(config, folder, World(), torch.device("cpu"))
    trainer.restore()
    if slow:
        loader = trainer.data.loader
        loader.next_batch = _late(loader.next_batch)  # type: ignore[method-assign]
    trainer.fit(8 * STEP_TOKENS)
    # All operations: which of them take most time is another matter on a machine that is busy.
    return diagnose(read_traces(recording(folder / "profile")), top=1_000)


def _late(fetch: Callable[[], Batch]) -> Callable[[], Batch]:
    """Return a loader that is slow beside the steps, however long those take on a machine that is busy."""
    given: list[float] = []

    def fetched() -> Batch:
        took = time.monotonic() - given[-1] if given else 0.0
        time.sleep(min(5.0, max(SLOW_SECONDS, SLOW_TIMES * took)))
        batch = fetch()
        given.append(time.monotonic())
        return batch

    return fetched


@pytest.mark.parametrize("start", [1, 3])
def test_a_slow_loader_is_named_from_a_real_trace(tiny: RunConfig, tmp_path: Path, start: int) -> None:
    config = replace(tiny, profile=ProfileConfig(start=start, steps=4, shapes=True, memory=True))
    found = recorded(config, tmp_path, slow=True)
    assert found.limit.cause == "input"
    assert (found.device, found.steps) == ("CPU", 4)
    assert found.shares["input"] * found.seconds_step >= SLOW_SECONDS
    assert found.memory is not None
    assert found.memory.peak_bytes > 0
    assert any(" / " in owner for owner, _ in found.memory.owners)  # a phase and an operation in it
    products = [one for one in found.kernels if one.kind == "matmul"]
    assert products
    assert any(one.flops for one in products)


def test_the_phases_of_a_step_are_marked(tiny: RunConfig, tmp_path: Path) -> None:
    config = replace(tiny, profile=ProfileConfig(start=3, steps=4))
    found = recorded(config, tmp_path, slow=False)
    assert found.memory is None
    assert not any(one.flops or one.bytes for one in found.kernels)
    trace = read_trace(recording(tmp_path / "profile")[0])
    marks = {trace.names[name] for name in trace.marks.name}
    assert {"data", "forward", "backward", "optimizer"} <= marks


def test_phases_cost_nothing_where_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[str] = []
    real = torch.profiler.record_function

    def record(name: str) -> torch.profiler.record_function:
        marked.append(name)
        return real(name)

    monkeypatch.setattr(torch.profiler, "record_function", record)
    clock = Clock(torch.device("cpu"))
    for listening in (False, True, False):
        clock.begin(timed=False, marked=listening)
        with clock.phase("forward"):
            pass
    assert marked == ["forward"]


def test_the_commands_that_are_printed_record_a_run(tiny: RunConfig, tmp_path: Path) -> None:
    config = write_config(tmp_path / "one", tiny)
    assert run.main(["--config", str(config), "--until", str(10 * STEP_TOKENS)]) == 0
    branched, trained, _ = trace_commands(RunFolder(config.parent), STEP_TOKENS)
    assert branch.main(shlex.split(branched)[3:]) == 0
    assert run.main(shlex.split(trained)[3:]) == 0
    found = diagnose(read_traces(recording(tmp_path / "one-profiled" / "profile")))
    assert found.steps == 3
