"""A warm process: it takes one request after the other through a socket, and answers with an exit code for each.

It answers `begun` when it takes a request and with an exit code when that has ended. If a request ends the process, the
process' own exit code is that of the request.
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

MAX_REQUEST = 1 << 17
"""Largest request [bytes]."""
BEGUN = b"begun"
ANSWER_SECONDS, END_SECONDS = 10.0, 10.0
_NOT_YET: int | None = None


class WarmProcess:
    """A warm child process; `command` is followed by the number of its end of the socket."""

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

    def send_first(self, text: bytes, descriptors: Sequence[int] = ()) -> Request:
        """Send the first request. If the process has ended already, its exit code is that of the request."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._connection, [text], descriptors)
        return Request(self.process, self._connection)

    def send_next(self, text: bytes, descriptors: Sequence[int] = ()) -> Request | None:
        """Send the next request after all before have ended; None if the process does not take it."""
        try:
            socket.send_fds(self._connection, [text], descriptors)
            ready, _, _ = select.select([self._connection], [], [], ANSWER_SECONDS)
            if not ready or self._connection.recv(len(BEGUN)) != BEGUN:
                return None
        except OSError:
            return None
        return Request(self.process, self._connection)

    def close(self) -> None:
        """Send no more requests: the process ends when it notices."""
        self._connection.close()

    def wait(self) -> None:
        """Wait for the end of a closed process; kill it after END_SECONDS."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Request:
    """A request that a warm process carries out, with the methods of `subprocess.Popen` that its starter needs."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        self.pid, self.returncode = process.pid, _NOT_YET

    def poll(self) -> int | None:
        """Return its exit code once it has ended: the one received, or that of the process."""
        if self.returncode is None:
            self._receive()
        if self.returncode is None and (ended := self._process.poll()) is not None:
            self._receive()  # the answer may have come since
            self.returncode = ended if self.returncode is None else self.returncode
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the process a signal while it carries out the request."""
        if self.poll() is None:
            self._process.send_signal(number)

    def _receive(self) -> None:
        with contextlib.suppress(OSError):  # no answer yet, or the process is gone
            while self.returncode is None and (said := self._connection.recv(64, socket.MSG_DONTWAIT)):
                self.returncode = None if said == BEGUN else int(said)
