"""Trainers as ranks of one run on this machine: started together, watched, and told apart by how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from study.process.children import PEERS_GRACE, Started, job_environment, kill, spawn, trainer_command
from study.process.ports import meeting_port

POLL_SECONDS = 0.02
SAID_LINES = 200
"""How many of a rank's last lines are kept."""


@dataclass(frozen=True)
class Launch:
    """What to start: the run in `folder`, as so many ranks, to `until` tokens if that is given.

    saves: whether it has checkpoints. environment: of single ranks, beside what all have.
    """

    folder: Path
    ranks: int
    until: int | None = None
    saves: bool = True
    environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def log(self, rank: int) -> Path:
        """Return the file to which a rank's output is added."""
        return self.folder / f"rank-{rank}.log"


@dataclass(frozen=True)
class EndedRank:
    """How a rank ended. at: by time.monotonic [s]. killed: why we killed it, empty where we did not."""

    rank: int
    code: int
    at: float
    said: tuple[str, ...]
    killed: str = ""

    @property
    def how(self) -> str:
        """Its exit code in words."""
        if self.killed:
            return self.killed
        return f"exit code {self.code}" if self.code >= 0 else f"killed by {signal.Signals(-self.code).name}"


@dataclass(frozen=True)
class Ended:
    """How the ranks of a run ended, in their order, and how long it took [s]."""

    ranks: tuple[EndedRank, ...]
    seconds: float

    @property
    def failed(self) -> EndedRank | None:
        """The first rank that failed, None where all ended well."""
        bad = [rank for rank in self.ranks if rank.code != 0]
        return min(bad, key=lambda rank: (bool(rank.killed), rank.at), default=None)


Watch = Callable[[Mapping[int, Started]], None]


def run_ranks(
    launch: Launch,
    watch: Watch = lambda _: None,
    *,
    grace: float = PEERS_GRACE,
    most_seconds: float = 600.0,
    poll: float = POLL_SECONDS,
) -> Ended:
    """Start the ranks, call `watch` every `poll` seconds while they run, and return how they ended.

    Ranks that outlive a failed one by `grace` seconds are killed, and all of them after `most_seconds`, where `watch`
    raises, or when this process dies.
    """
    base = job_environment(os.environ) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting_port())}
    base |= {"WORLD_SIZE": str(launch.ranks), "OMP_NUM_THREADS": "1"}
    command = trainer_command(launch.folder / "config.yaml", launch.until) + ["--unsaved"] * (not launch.saves)
    command.append("--device-weights")  # drawn on the CPU, a billion weights take longer than the steps
    processes: dict[int, subprocess.Popen[bytes]] = {}
    sizes = [launch.log(rank).stat().st_size if launch.log(rank).exists() else 0 for rank in range(launch.ranks)]
    began, at, killed = time.monotonic(), dict[int, float](), dict[int, str]()
    try:
        for rank in range(launch.ranks):
            mine = base | {"RANK": str(rank), "LOCAL_RANK": str(rank), **launch.environment.get(rank, {})}
            log = launch.log(rank)
            # The trainer answers SIGTERM at its next step, which is minutes away while it builds a large model.
            processes[rank] = spawn(command, mine, log, log, orphaned=signal.SIGKILL)
        limit = began + most_seconds
        while len(at) < launch.ranks:
            watch(processes)
            for rank, process in processes.items():
                if rank not in at and process.poll() is not None:
                    at[rank] = time.monotonic()
                    limit = min(limit, at[rank] + grace) if process.poll() else limit
            if time.monotonic() > limit:
                bad = [at[rank] for rank in at if processes[rank].returncode]
                waited = time.monotonic() - min(bad, default=began)
                why = f"still {'hanging' if bad else 'running'} after {waited:.1f} s"
                # Once killed, a rank may be there for another look, and others have ended of it by then.
                killed = dict.fromkeys(processes.keys() - at.keys(), f"{why}, ended from outside") | killed
                kill(processes)
            time.sleep(poll)
    finally:
        kill(processes)
        for process in processes.values():  # the folder that they write to may go next
            process.wait()
    ended = [
        EndedRank(rank, process.returncode or 0, at[rank], _said(launch.log(rank), sizes[rank]), killed.get(rank, ""))
        for rank, process in processes.items()
    ]
    return Ended(tuple(ended), max(at.values()) - began)


def _said(log: Path, begin: int) -> tuple[str, ...]:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return tuple(line for line in lines if line.strip())[-SAID_LINES:]
