"""Running a trainer process: starting it so that it cannot be orphaned, passing signals on, naming how it ended."""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
DIVERGED, INTERRUPTED = 3, 75
PR_SET_PDEATHSIG = 1
PEERS_GRACE = 30.0
RANKS_POLL = 0.1


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: its state, the process's exit code or signal, and the supervisor's own words on why."""

    state: str
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None

    @property
    def code(self) -> int:
        """The exit code that agrees with the state: 0 only for completed, so that SLURM calls nothing else a success.

        A diverged run is a result, but not the one that was asked for: its job fails with 3, and jobs that depend on
        its success do not start.
        """
        if self.state in ("completed", "paused"):
            return 0
        if self.state == "diverged":
            return DIVERGED
        if self.state != "failed":
            return INTERRUPTED
        return 128 + self.signal if self.signal else self.exit_code or 1


class Signals:
    """Receives the signals that ask a job to end, remembers them and passes them on to the trainer's processes."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def install(self) -> None:
        """Handle the signals from now on."""
        for number in FORWARDED:
            signal.signal(number, self._handle)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Pass signals on to this process as well, also those that came while it was being started."""
        self._processes.append(process)
        for number in list(self.received):
            _forward(number, process)

    def pass_on(self, number: int) -> None:
        """Send a signal to the trainer's processes that nobody sent to this one."""
        for process in self._processes:
            _forward(number, process)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        self.pass_on(number)


def _forward(number: int, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


def wait_together(processes: Sequence[subprocess.Popen[bytes]], grace: float = PEERS_GRACE) -> int:
    """Wait for the ranks of one run; return the one whose failure came first, 0 where none failed.

    A rank that fails takes the others with it: they have `grace` seconds to notice it themselves and to say what they
    saw, then they get SIGTERM, and SIGKILL after the same time again.
    """
    first: int | None = None
    deadline, number = math.inf, signal.SIGTERM
    while None in [process.poll() for process in processes]:  # each is asked: that is how its end is noticed
        failed = [i for i, p in enumerate(processes) if p.returncode not in (None, 0, DIVERGED, INTERRUPTED)]
        if first is None and failed:
            # Of several seen at once, the one that a signal killed did not merely lose its peer.
            first = min(failed, key=lambda i: (processes[i].returncode >= 0, i))
            deadline = time.monotonic() + grace
        if time.monotonic() > deadline:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(number)
            deadline, number = time.monotonic() + grace, signal.SIGKILL
        time.sleep(RANKS_POLL)
    failed = [i for i, p in enumerate(processes) if p.returncode not in (0, DIVERGED, INTERRUPTED)]
    return first if first is not None else min(failed, default=0)


def classify(
    returncode: int, received: Sequence[int], outcome: str | None, cancelled: bool, time_left: float | None
) -> Ending:
    """Return how an attempt ended. Pure.

    `returncode` is Popen's; `received` the signals passed on to the trainer; `outcome` the state in the run's
    outcome.json; `cancelled` whether the ledger says so; `time_left` the seconds to the time limit when the first
    signal came (None: not known).
    """
    killed = -returncode if returncode < 0 else None
    if returncode == 0 and outcome is None:
        return Ending("failed", 0, why="the trainer ended with exit code 0 but wrote no outcome.json")
    if returncode in (0, DIVERGED):
        return Ending(outcome or "diverged", returncode)
    if returncode == INTERRUPTED or (killed is not None and _asked(killed, received)):
        state = _interruption(received, cancelled, time_left)
        return Ending(state, None if killed else returncode, killed)
    if killed is not None:
        return Ending("failed", None, killed, why=f"killed by signal {killed} ({_name(killed)})")
    return Ending("failed", returncode)


def _asked(killed: int, received: Sequence[int]) -> bool:
    """Whether it died of a signal that we passed on before its handlers were in place."""
    return killed in received or (killed == signal.SIGTERM and signal.SIGHUP in received)


def _interruption(received: Sequence[int], cancelled: bool, time_left: float | None) -> str:
    if cancelled:
        return "cancelled"
    if signal.SIGUSR1 in received or signal.SIGUSR2 in received:
        # The same signal announces a time limit and, on some sites, a preemption: the clock tells them apart.
        return "time_limit" if time_left is None or time_left < 300 else "preempted"
    return "interrupted"


def _name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "unknown"
    return f"{name}, often the kernel or SLURM when memory ran out" if number == signal.SIGKILL else name


def trainer_command(config: Path, until: int | None = None) -> list[str]:
    """Return the command that advances the run of a config, to `until` tokens if that is given.

    The environment variable STUDY_TRAINER replaces its beginning (`python -m train.run`), e.g. by a container's
    launcher or a profiler around it.
    """
    given = os.environ.get("STUDY_TRAINER")
    start = shlex.split(given) if given else [sys.executable, "-u", "-m", "train.run"]
    return [*start, "--config", str(config), *([] if until is None else ["--until", str(until)])]


def spawn(
    command: Sequence[str], environment: Mapping[str, str], stdout: Path, stderr: Path, inherit: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that gets SIGTERM when this one dies, its output added to these files."""
    with stdout.open("ab") as out, stderr.open("ab") as err:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(environment),
            start_new_session=True,
            pass_fds=tuple(inherit),
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - its callers have one thread
        )


def die_with_parent() -> Callable[[], None]:
    """Return what a child calls before exec, so that the kernel sends it SIGTERM when its parent dies in any way."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return prepare
