"""Copies for a checkpoint: weights change only after theirs are made. A GPU's own test is in tests/gpu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.runs import write_config
from train import run
from train.checkpoint.save import Saver
from train.checkpoint.staging import Staging
from train.optim.optimizer import Optimizer
from train.spec.config import BudgetConfig, RunConfig


class Stream:
    """Stands in for a GPU's queue of work: notes which others it waits for."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 1)
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


@pytest.mark.parametrize("captured", [False, True])
def test_the_update_waits_for_the_copies_on_their_device(monkeypatch: pytest.MonkeyPatch, captured: bool) -> None:
    training, copying = Stream(), Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: {copying.device: training}[device])
    # A torch without CUDA cannot say.
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    staging = Staging()
    staging.before_update()
    assert not training.waited, "nothing was copied from a GPU"
    staging._stream = copying  # type: ignore[assignment]
    staging.before_update()
    assert training.waited == ([] if captured else [copying])


def test_every_update_of_a_run_waits_for_copies_first(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(kind: type, name: str) -> None:
        true = getattr(kind, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            order.append(name)
            return true(self, *arguments, **options)

        monkeypatch.setattr(kind, name, call)

    noted(Saver, "before_update")
    noted(Optimizer, "step")
    config = replace(tiny, budget=BudgetConfig(tokens=3 * 128))
    assert run.main(["--config", str(write_config(tmp_path / "run", config))]) == 0
    assert order == ["before_update", "step"] * 3
