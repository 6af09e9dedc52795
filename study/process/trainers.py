"""How trainers are started: a process for each attempt, or one that stays for attempts that follow each other.

The one that stays (`train.serve`) imports torch, meets the GPU and loads compiled code once. It is as good as a fresh
one or it is gone: whatever an attempt ends with but 0 or a divergence ends it with that exit code, and it goes where the
next attempt needs another process, or something of the last one is left in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from study.process import code_version
from study.process.children import Started, interpreter, spawn, trainer_command

MOST = 1 << 17
"""Size of a request to `train.serve` [bytes]."""
BEGUN = b"begun"
ANSWER_SECONDS, END_SECONDS = 10.0, 10.0


@dataclass(frozen=True)
class TrainerStart:
    """What a trainer is given; `until` [tokens], None: its budget. inherit: descriptors that it holds until its end."""

    config: Path
    until: int | None
    environment: Mapping[str, str]
    stdout: Path
    stderr: Path
    inherit: tuple[int, ...] = ()


class Trainers(Protocol):
    """Starts trainers of one process."""

    def start(self, wanted: TrainerStart) -> Started:
        """Start one."""

    def close(self) -> None:
        """End what stays."""


class FreshTrainers:
    """A process for each attempt."""

    def start(self, wanted: TrainerStart) -> Started:
        """Start one."""
        command = trainer_command(wanted.config, wanted.until)
        return spawn(command, wanted.environment, wanted.stdout, wanted.stderr, wanted.inherit)

    def close(self) -> None:
        """Do nothing: they have ended."""


FRESH = FreshTrainers()


def trainers(warm: object) -> Trainers:
    """Return how a process starts the trainers of points that it takes one after the other."""
    return WarmTrainers() if warm else FRESH


class WarmTrainers:
    """At most one process, which trains one attempt after the other; where STUDY_TRAINER is set each has its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._code = ""
        self._ending: list[subprocess.Popen[bytes]] = []

    def start(self, wanted: TrainerStart) -> Started:
        """Start one, in the process that is there if that is as good as a fresh one."""
        request = {
            "arguments": trainer_command(wanted.config, wanted.until)[-2 if wanted.until is None else -4 :],
            "environment": dict(wanted.environment),
            "folder": str(Path.cwd()),
        }
        text = json.dumps(request).encode()
        if os.environ.get("STUDY_TRAINER") or len(text) > MOST:
            return FRESH.start(wanted)
        code = code_version.stamp()  # a process that stays has the code as it was when it started
        if self._process is not None and (code != self._code or not self._takes(text, wanted)):
            self._let_go()
        if self._process is None:
            self._begin(text, wanted, code)
        assert self._process is not None
        assert self._connection is not None
        return Served(self._process, self._connection)

    def close(self) -> None:
        """End the process and wait for that."""
        self._let_go()
        for process in self._ending:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._ending.clear()

    def _begin(self, text: bytes, wanted: TrainerStart, code: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [*interpreter(), "-m", "train.serve", str(theirs.fileno())]
            self._process = spawn(command, wanted.environment, wanted.stdout, wanted.stderr, (theirs.fileno(),))
        self._connection, self._code = ours, code
        with contextlib.suppress(OSError):  # it has ended already, as its exit code says
            _send(ours, text, wanted)

    def _takes(self, text: bytes, wanted: TrainerStart) -> bool:
        """Ask the process to train an attempt; return whether it has begun with it."""
        assert self._connection is not None
        try:
            _send(self._connection, text, wanted)
            ready, _, _ = select.select([self._connection], [], [], ANSWER_SECONDS)
            return bool(ready) and self._connection.recv(len(BEGUN)) == BEGUN
        except OSError:
            return False

    def _let_go(self) -> None:
        if self._process is None or self._connection is None:
            return
        self._connection.close()  # it goes when it finds that closed
        self._ending = [process for process in (*self._ending, self._process) if process.poll() is None]
        self._process = self._connection = None


class Served:
    """One attempt in the process that stays: what its starter needs of `subprocess.Popen`, by the same names."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        self.pid, self.returncode = process.pid, _NOT_YET

    def poll(self) -> int | None:
        """Return the attempt's exit code, once it has ended: the one that it said, or that of its process."""
        if self.returncode is None:
            self._hear()
        if self.returncode is None and (ended := self._process.poll()) is not None:
            self._hear()  # it may have said it since
            self.returncode = ended if self.returncode is None else self.returncode
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send its process a signal while it runs."""
        if self.poll() is None:
            self._process.send_signal(number)

    def _hear(self) -> None:
        with contextlib.suppress(OSError):  # nothing is there, or nobody any more
            while self.returncode is None and (said := self._connection.recv(64, socket.MSG_DONTWAIT)):
                self.returncode = None if said == BEGUN else int(said)


_NOT_YET: int | None = None


def _send(connection: socket.socket, text: bytes, wanted: TrainerStart) -> None:
    with wanted.stdout.open("ab") as out, wanted.stderr.open("ab") as err:
        socket.send_fds(connection, [text], [out.fileno(), err.fileno(), *wanted.inherit])
