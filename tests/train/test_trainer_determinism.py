"""The deterministic mode: the same bits again, and through a restart."""

from __future__ import annotations

from pathlib import Path

from tests.train.runs import finish, read_outcome, start, values, with_runtime, write_config
from train.spec.config import RunConfig


def test_a_run_repeats_bitwise_also_through_a_restart(tmp_path: Path, tiny: RunConfig) -> None:
    config = with_runtime(tiny, deterministic=True)
    whole, stopped = write_config(tmp_path / "whole", config), write_config(tmp_path / "stopped", config)
    together = [start(whole), start(stopped, "--until", "1024")]  # where the first validation is
    for process in together:
        finish(process)
    finish(start(stopped))
    assert values(whole.parent) == values(stopped.parent)
    assert read_outcome(whole.parent)["loss"] == read_outcome(stopped.parent)["loss"]
