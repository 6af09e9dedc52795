"""The deterministic mode: the same bits again, and through a restart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.train.runs import finish, read_outcome, start, values, with_runtime, write_config
from train.runtime.determinism import make_deterministic
from train.spec.config import RunConfig


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the mode sets, it sets for the process: set it back."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")  # as it is afterwards, too
    deterministic, fill = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic
    filling, benchmark = fill.fill_uninitialized_memory, torch.backends.cudnn.benchmark  # type: ignore[attr-defined]
    yield
    torch.use_deterministic_algorithms(deterministic)
    fill.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = benchmark


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(("device", "workspace"), [("cpu", None), ("cuda", ":4096:8")])
def test_the_mode_refuses_what_has_no_one_order(device: str, workspace: str | None, compiles: bool) -> None:
    place, value = torch.tensor([0, 0]), torch.tensor([1.0, 2.0])
    torch.zeros(3).put_(place, value)  # of two values for one place any may stay
    torch.backends.cudnn.benchmark = True
    make_deterministic(torch.device(device), compiles)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.zeros(3).put_(place, value)
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == workspace
    assert torch.backends.cudnn.benchmark is (device == "cpu")


def test_a_run_repeats_bitwise_also_through_a_restart(tmp_path: Path, tiny: RunConfig) -> None:
    config = with_runtime(tiny, deterministic=True)
    whole, stopped = write_config(tmp_path / "whole", config), write_config(tmp_path / "stopped", config)
    together = [start(whole), start(stopped, "--until", "1024")]  # where the first validation is
    for process in together:
        finish(process)
    finish(start(stopped))
    assert values(whole.parent) == values(stopped.parent)
    assert read_outcome(whole.parent)["loss"] == read_outcome(stopped.parent)["loss"]
