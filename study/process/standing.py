"""A process that stays: it is given one thing to do after the other through a socket, and says how each ended.

It answers `begun` when it takes something and with an exit code when that has ended. Where a thing ends the process,
the process' own exit code is the thing's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from study.process.children import spawn

MOST = 1 << 17
"""Size of what is given [bytes]."""
BEGUN = b"begun"
ANSWER_SECONDS, END_SECONDS = 10.0, 10.0
_NOT_YET: int | None = None


class Standing:
    """One such process, a child of this one; `command` is followed by the number of its end of the socket."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: Path | None = None,
        stderr: Path | None = None,
    ) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            end = theirs.fileno()
            self.process = spawn([*command, str(end)], environment, stdout, stderr, (end,))

    def give(self, text: bytes, descriptors: Sequence[int] = ()) -> Served:
        """Give it the first thing to do. Where it has ended already, its exit code is that of the thing."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._connection, [text], descriptors)
        return Served(self.process, self._connection)

    def offer(self, text: bytes, descriptors: Sequence[int] = ()) -> Served | None:
        """Give it the next thing, all before having ended; None where it does not take that."""
        try:
            socket.send_fds(self._connection, [text], descriptors)
            ready, _, _ = select.select([self._connection], [], [], ANSWER_SECONDS)
            if not ready or self._connection.recv(len(BEGUN)) != BEGUN:
                return None
        except OSError:
            return None
        return Served(self.process, self._connection)

    def let_go(self) -> None:
        """Give it no more: it ends when it finds that."""
        self._connection.close()

    def wait(self) -> None:
        """Wait until it has ended, which it was let go for; kill it if that takes long."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Served:
    """One thing that such a process does: what its starter needs of `subprocess.Popen`, by the same names."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        self.pid, self.returncode = process.pid, _NOT_YET

    def poll(self) -> int | None:
        """Return its exit code once it has ended: the one that was said, or that of the process."""
        if self.returncode is None:
            self._hear()
        if self.returncode is None and (ended := self._process.poll()) is not None:
            self._hear()  # it may have said it since
            self.returncode = ended if self.returncode is None else self.returncode
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the process a signal while it does this."""
        if self.poll() is None:
            self._process.send_signal(number)

    def _hear(self) -> None:
        with contextlib.suppress(OSError):  # nothing is there, or nobody any more
            while self.returncode is None and (said := self._connection.recv(64, socket.MSG_DONTWAIT)):
                self.returncode = None if said == BEGUN else int(said)
