"""Leases of claims: renewed by a timer, which also ends a unit that takes what was reserved for it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from study.search.leases import Lease
from study.search.state import Claim
from study.storage.layout import StudyFolder
from sweeps.history import Unit


@pytest.mark.parametrize("limit", [0.2, 0.0])
def test_the_limit_of_the_next_claim_is_kept(tmp_path: Path, limit: float) -> None:
    """The first unit may have a whole hour, and the next one of the same trainer a fraction of a second, or nothing."""
    asked: list[int] = []
    first, second = (Claim(number, Unit(0, 100 * number), "key", "worker", time.time()) for number in (1, 2))
    before = signal.getsignal(signal.SIGALRM)
    try:
        with Lease(StudyFolder(tmp_path), first, 120.0, 3600.0, asked.append) as lease:
            lease.pass_to(second, limit)
            deadline = time.monotonic() + 900
            while signal.SIGKILL not in asked and time.monotonic() < deadline:
                time.sleep(0.01)
            assert lease.used_up
    finally:
        signal.signal(signal.SIGALRM, before)
    assert asked[-1] == signal.SIGKILL
    assert (StudyFolder(tmp_path).leases / "2").exists()
