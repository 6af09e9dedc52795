"""Gloo's groups have one worker thread each: torch's two write to one string at once, which aborts the rank."""

from __future__ import annotations

import json

import pytest

from tests.forked import run_ranks
from train.runtime import gloo


def test_groups_have_one_worker_each_and_bear_many_collectives_at_once() -> None:
    counts, seconds = json.loads(run_ranks(2, "tests.train.runtime.gloo_workers"))
    assert counts == [[1, 2, 3]] * 2  # of all ranks, then of one rank, then an axis of a mesh
    assert seconds == 700


def test_interfaces_are_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,lo")
    assert len(gloo.devices()) == 2
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert len(gloo.devices()) == 1
