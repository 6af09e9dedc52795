"""Running trainer processes: starting them so that they cannot be orphaned, passing signals on, waiting for all."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from study.failures.kinds import DIVERGED, INTERRUPTED
from study.process import code_version

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PEERS_GRACE = 30.0
RANKS_POLL = 0.1
SIGNAL_POLL = 0.02


class Started(Protocol):
    """A process that was started for an attempt: what is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, as far as it was asked for; None before."""

    def poll(self) -> int | None:
        """Return its exit code, a signal's as a negative number; None while it runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal."""


class Signals:
    """Receives the signals that ask a job to end, remembers them and passes them on to the trainer's processes."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._processes: list[Started] = []

    def install(self) -> None:
        """Handle the signals from now on."""
        for number in FORWARDED:
            signal.signal(number, self._handle)

    def watch(self, process: Started) -> None:
        """Pass signals on to this process as well, also those that came while it was being started."""
        self._processes.append(process)
        for number in list(self.received):
            _forward(number, process)

    def wait(self, seconds: float) -> None:
        """Wait until one has come, for so many seconds at most."""
        limit = time.monotonic() + seconds
        while not self.received and time.monotonic() < limit:
            time.sleep(SIGNAL_POLL)

    def pass_on(self, number: int) -> None:
        """Send a signal to the trainer's processes that nobody sent to this one."""
        for process in self._processes:
            _forward(number, process)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        self.pass_on(number)


def _forward(number: int, process: Started) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


def wait_together(
    processes: Mapping[int, Started],
    hangs: Callable[[], bool] = lambda: False,
    lost: Callable[[], bool] = lambda: False,
    grace: float = PEERS_GRACE,
) -> int | None:
    """Wait for the ranks of one run that this process has started; return the one whose failure came first, if any.

    A rank that fails takes the others with it: they have `grace` seconds to notice it themselves and to say what they
    saw, then they get SIGTERM, and SIGKILL after the same time again. So they do where `lost` says that a rank of
    another process has failed. `hangs` looks after them, and kills those that hang.
    """
    first: int | None = None
    deadline, number = math.inf, signal.SIGTERM
    while None in [process.poll() for process in processes.values()]:  # each is asked: that is how its end is noticed
        failed = _failed(processes)
        if first is None and failed:
            first = _likeliest(failed, processes)
        if deadline == math.inf and (first is not None or lost()):
            deadline = time.monotonic() + grace
        if time.monotonic() > deadline:
            for process in processes.values():
                if process.poll() is None:
                    process.send_signal(number)
            deadline, number = time.monotonic() + grace, signal.SIGKILL
        hangs()
        time.sleep(RANKS_POLL)
    return first if first is not None else _likeliest(_failed(processes), processes)


def failed_alone(processes: Mapping[int, Started]) -> list[int]:
    """Return the ranks that failed, but for those that a signal ended as we end what is left of a failed run."""
    ours = (-signal.SIGTERM, -signal.SIGKILL)
    return [rank for rank in _failed(processes) if processes[rank].returncode not in ours]


def _likeliest(failed: Sequence[int], processes: Mapping[int, Started]) -> int | None:
    """Return which of ranks that were seen to have failed at once it was: one that a signal killed lost no peer."""
    return min(failed, key=lambda rank: ((processes[rank].returncode or 0) >= 0, rank), default=None)


def _failed(processes: Mapping[int, Started]) -> list[int]:
    return [rank for rank, p in processes.items() if p.returncode not in (None, 0, DIVERGED, INTERRUPTED)]


def memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory: in this control group, and on this host."""
    files = [(Path("/proc/vmstat"), "oom_kill")]
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.append((Path(f"/sys/fs/cgroup{path}/memory.events"), "oom_kill"))
        elif controllers == "memory":
            files.append((Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"), "oom_kill"))
    found = 0
    for file, name in files:
        for line in _lines(file):
            words = line.split()
            if len(words) == 2 and words[0] == name and words[1].isdigit():
                found += int(words[1])
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def interpreter() -> list[str]:
    """Return how this process starts Python, unbuffered.

    Where it does not import from the working directory, what it starts does not either: else a job that runs a copy of
    the code (see study.process.code_snapshot) would start a trainer of the checkout.
    """
    return [sys.executable, *code_version.python_options(copied=sys.flags.safe_path)]


def trainer_command(config: Path, until: int | None = None) -> list[str]:
    """Return the command that advances the run of a config, to `until` tokens if that is given.

    The environment variable STUDY_TRAINER replaces its beginning (`python -m train.run`), e.g. by a container's
    launcher or a profiler around it.
    """
    given = os.environ.get("STUDY_TRAINER")
    start = shlex.split(given) if given else [*interpreter(), "-m", "train.run"]
    return [*start, "--config", str(config), *([] if until is None else ["--until", str(until)])]


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: Path | None = None,
    stderr: Path | None = None,
    inherit: Sequence[int] = (),
    *,
    orphaned: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, its output added to these files.

    Without files it says what it says where this one does. orphaned: the signal that it gets when this process dies.
    """
    with contextlib.ExitStack() as files:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=None if stdout is None else files.enter_context(stdout.open("ab")),
            stderr=None if stderr is None else files.enter_context(stderr.open("ab")),
            env=dict(environment),
            start_new_session=True,
            pass_fds=tuple(inherit),
            preexec_fn=die_with_parent(orphaned),  # noqa: PLW1509 - its callers have one thread
        )


def kill(processes: Mapping[int, Started]) -> None:
    """Kill those of the processes from :func:`spawn` that still run, with all that they started."""
    for process in processes.values():
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Return what a child calls before exec, so that the kernel sends it a signal when its parent dies in any way."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return prepare


def python(copy: Path | None = None) -> list[str]:
    """Return how Python is started for a local run of the checkout, or of a copy of the code and nothing beside it."""
    return [sys.executable, *code_version.python_options(copied=copy is not None)]


def job_environment(environment: Mapping[str, str], copy: Path | None = None) -> dict[str, str]:
    """Return the environment of a local run: this one, with this package importable from any directory.

    copy: of the code, which then is imported; what else the working directory and the checkout hold comes after it.
    """
    home = [] if copy is None else [str(copy), str(Path.cwd())]
    folders = [*home, str(code_version.home()), environment.get("PYTHONPATH")]
    return {**environment, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}
