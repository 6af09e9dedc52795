"""Leases: how a worker shows that it still holds what it claimed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self

from study.search.state import Claim
from study.storage.layout import StudyFolder

BEATS = 4
"""How often a lease is renewed while it lasts."""
SHORTEST = 0.01
"""Shortest time between two beats [s]."""


class Lease:
    """Renews a claim's lease while the block runs, by a timer: a thread would make it unsafe to start processes.

    In the last tenth of the `limit` [s] reserved for its unit it calls `ask` with SIGTERM, to save and end, and at the
    limit with SIGKILL. `beating`: there is a lease to renew.
    """

    def __init__(
        self,
        folder: StudyFolder,
        claim: Claim,
        seconds: float,
        limit: float | None = None,
        ask: Callable[[int], None] = lambda number: None,
        *,
        beating: bool = True,
    ) -> None:
        self._folder, self._claim, self._beating = folder, claim, beating
        self._lasts, self._limit, self._ask = seconds, limit, ask
        self._began = time.monotonic()
        self.used_up = False

    def __enter__(self) -> Self:
        signal.signal(signal.SIGALRM, self._beat)
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def pass_to(self, claim: Claim, limit: float | None) -> None:
        """Renew another claim's lease from now on, whose time and limit begin now. Within the block."""
        self._claim, self._limit, self.used_up = claim, limit, False
        self._begin()

    @property
    def seconds(self) -> float:
        """How long the present claim has lasted [s]."""
        return time.monotonic() - self._began

    def _begin(self) -> None:
        """Start the clock, and a timer that is often enough for the lease and for the limit."""
        self._began = time.monotonic()
        every = self._lasts / BEATS if self._limit is None else min(self._lasts / BEATS, self._limit / 20)
        every = max(every, SHORTEST)  # zero would stop the timer
        signal.setitimer(signal.ITIMER_REAL, every, every)

    def _beat(self, number: int, frame: FrameType | None) -> None:
        if self._limit is not None and self.seconds > 0.9 * self._limit:
            self._ask(signal.SIGKILL if self.seconds > self._limit else signal.SIGTERM)
            self.used_up = True
        if not self._beating:
            return
        try:
            renew(self._folder, self._claim.number)
        except OSError as error:  # a full disk or an absent server; the next beat may work
            print(f"lease {self._claim.number} not renewed: {error}", flush=True)


def renew(folder: StudyFolder, number: int) -> None:
    """Write a lease's file, so that the file server stamps it with its own time."""
    folder.leases.mkdir(parents=True, exist_ok=True)
    (folder.leases / str(number)).write_text(f"{os.uname().nodename} {os.getpid()}\n", encoding="utf-8")


def lease_time(folder: StudyFolder, number: int) -> float | None:
    """Return when a lease was last renewed, by the file server's clock; None where there is none."""
    try:
        return (folder.leases / str(number)).stat().st_mtime
    except OSError:
        return None


def server_clock(folder: StudyFolder) -> float:
    """Return the file server's time: that of a file written now. Nodes' own clocks may differ."""
    folder.leases.mkdir(parents=True, exist_ok=True)
    probe: Path = folder.leases / f".now.{os.uname().nodename}.{os.getpid()}"
    probe.write_text("", encoding="utf-8")
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    return now
