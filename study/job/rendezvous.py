"""The rendezvous of a job's ranks, and its retries at another port where the first choice was taken meanwhile.

The first rank's process finds a free port and writes it into job.json; its trainer binds it seconds later. Where
another process has bound it by then, the trainer fails before any rank has connected. Its process then writes another
port as the next round of the same attempt, and every rank's process starts its trainer anew for that round.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from study.executors.base import RankInfo
from study.job.rank import own_address
from study.process.ports import FIRST_PORT, PORTS, is_free
from study.records.shapes import JOB
from study.storage.files import file_size, tail
from study.storage.layout import AttemptFolder
from study.storage.shapes import read_record

ROUNDS = 4
"""Ports that an attempt tries; after that it fails like any other that cannot meet."""
LOOK_SECONDS, WAIT_SECONDS = 1.0, 20.0
WORDS_BYTES = 65536
TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")


@dataclass
class RendezvousRound:
    """One rank's part of a round: `job` is what job.json says of it."""

    attempt: AttemptFolder
    job: Mapping[str, Any]
    rank: int
    _before: int = field(init=False)
    _next: float = 0.0
    _found: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._before = file_size(self.attempt.stderr(self.rank))

    @property
    def number(self) -> int:
        """Which round it is, from 0."""
        return int(self.job.get("round", 0))

    def taken(self, returncode: int | None) -> bool:
        """Whether the first rank's trainer has ended because its port is taken."""
        if self.rank or returncode in (None, 0) or int(self.job.get("world", 1)) == 1 or self.number + 1 >= ROUNDS:
            return False
        said = tail(self.attempt.stderr(0), min(WORDS_BYTES, file_size(self.attempt.stderr(0)) - self._before))
        return TAKEN.search(said) is not None

    def over(self) -> Mapping[str, Any] | None:
        """Return what job.json says of the next round, once there is one; looked for until the trainer has begun."""
        now = time.monotonic()
        if self._found is not None or self.rank == 0 or now < self._next or self.attempt.beat(self.rank).exists():
            return self._found
        self._next = now + LOOK_SECONDS
        job = read_record(self.attempt.job, JOB)
        if job is not None and int(job.get("round", 0)) > self.number:
            self._found = job
        return self._found

    def wait(self) -> Mapping[str, Any] | None:
        """Return the next round's job.json for a rank that could not meet the first; None where there will be none."""
        limit = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < limit and not self.attempt.outcome.exists():
            self._next = 0.0
            job = self.over()
            if job is not None:
                return job
            time.sleep(0.2)
        return None


def rendezvous(rank_info: RankInfo, address: str | None, taken: int = 0) -> tuple[str, int]:
    """Return the address and a port that is free on this host, derived from the job id. For the first rank.

    `taken`: how many ports of this attempt were taken before its ranks could meet there.
    """
    numbers = re.findall(r"\d+", rank_info.job_id)
    start = sum(int(n) * factor for n, factor in zip(numbers, (17, 1), strict=False))
    return address or own_address(), first_free(start + 7919 * rank_info.restart + 101 * taken, is_free)


def first_free(start: int, is_free: Callable[[int], bool]) -> int:
    """Return the first free port from `start` on, going round the range. Raises OSError where there is none."""
    for step in range(PORTS):
        port = FIRST_PORT + (start + step) % PORTS
        if is_free(port):
            return port
    raise OSError(f"no free port between {FIRST_PORT} and {FIRST_PORT + PORTS} on {socket.gethostname()}")
