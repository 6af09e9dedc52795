"""Whoever submits is killed at random operations, with a scheduler that loses and delays: each point runs once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.submission_kills import POINTS, World
from study.records import ledger


@pytest.mark.parametrize("seed", [11, 12])
def test_no_point_is_lost_or_run_twice(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.live(kills=12)
    assert world.ran() == {1: POINTS}
    state = ledger.read(world.study)
    assert not state.waiting
    assert not any(batch.ambiguous for batch in state.batches.values())
    assert world.stuck == 0, "what fits is submitted by the jobs themselves"
