"""Gloo's groups: torch's two workers write to one string at once, and its wrapper for debugging ends a rank."""

from __future__ import annotations

import ast
import json

import pytest
from torch._C._distributed_c10d import DebugLevel

from tests.forked import run_ranks
from train.runtime import gloo


def test_groups_have_one_worker_each_and_bear_many_collectives_at_once() -> None:
    counts, seconds = json.loads(run_ranks(2, "tests.train.runtime.gloo_workers"))
    assert counts == [[1, 2, 3]] * 2  # of all ranks, then of one rank, then an axis of a mesh
    assert seconds == 700


def test_a_model_is_wrapped_also_where_messages_are_debugged() -> None:
    """DistributedDataParallel dies with SIGSEGV over gloo's groups as DETAIL wraps them."""
    said = run_ranks(2, "tests.train.runtime.gloo_details")
    gradients, level = ast.literal_eval(said)
    assert gradients == [[[0.5, 0.5]]] * 2
    assert level == "INFO"


@pytest.mark.parametrize("level, said", [("DETAIL", True), ("INFO", False), ("OFF", False)])
def test_only_the_level_that_wraps_groups_is_lowered(level: str, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [getattr(DebugLevel, level)]
    monkeypatch.setattr(gloo, "get_debug_level", lambda: levels[-1])
    monkeypatch.setattr(gloo, "set_debug_level", levels.append)
    line = gloo.lower_debug_level()
    assert (line is not None) is said
    assert levels[1:] == ([DebugLevel.INFO] if said else [])
    assert line is None or line.startswith("TORCH_DISTRIBUTED_DEBUG=DETAIL counts as INFO on CPUs: ")


def test_interfaces_are_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,lo")
    assert len(gloo.devices()) == 2
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert len(gloo.devices()) == 1
