"""A trainer that starts in a moment, for tests of what runs it: `STUDY_TRAINER=<what trainer() returns>`.

A process that has imported what every trainer imports listens at a socket. What is started asks it for a fork of
itself, which runs `python -m train.run` in the asker's folder, with its environment and output; the asker hands on
signals and ends as the fork does. If the asker is killed, so is the fork.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

MOST = 1 << 17
"""Size of a request, nearly all of it an environment [bytes]."""
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


@functools.cache
def trainer() -> str:
    """Return the command that stands for `python -m train.run`; what it asks runs as long as this process."""
    from tests.forked import LOADED, USED

    place = Path(tempfile.mkdtemp(prefix="trainer-")) / "socket"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(place))
    listening.listen(64)
    words = [sys.executable, "-m", "tests.warm_trainer", "serve", str(listening.fileno()), *USED, *LOADED]
    subprocess.Popen(
        words,
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,  # at its end when this process is
        pass_fds=[listening.fileno()],
    )
    listening.close()
    return f"{sys.executable} -S -E {__file__} {place}"


class Server:
    """Forks for everyone who asks at a socket; leaves when standard input ends."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # pid and who asked, by pidfd

    def serve(self) -> dict[str, Any]:
        """Return, in each fork, what that is to run."""
        while True:
            for descriptor in self._ready():
                if descriptor == 0:
                    self._leave()
                if descriptor == self._listening.fileno():
                    asked = self._begun()
                    if asked is not None:
                        return asked
                elif descriptor in self._forks:
                    self._end(descriptor)
                else:  # who asked was killed: it says nothing more otherwise
                    self._kill(descriptor)

    def _ready(self) -> list[int]:
        waiting = select.poll()
        askers = [asker.fileno() for _, asker in self._forks.values()]
        for descriptor in (0, self._listening.fileno(), *self._forks, *askers):
            waiting.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in waiting.poll()]

    def _begun(self) -> dict[str, Any] | None:
        """Fork for who asks; return what it wants in the fork, and None in this process."""
        asker, _ = self._listening.accept()
        asked, ends, _, _ = socket.recv_fds(asker, MOST, 2)
        if not asked:  # it was killed before
            asker.close()
            return None
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, end in zip((1, 2), ends, strict=True):
                os.dup2(end, number)
            for number in (*ends, asker.detach(), self._listening.detach(), *self._forks):
                os.close(number)
            for _, other in self._forks.values():
                other.close()
            return dict(json.loads(asked))
        for end in ends:
            os.close(end)
        self._forks[os.pidfd_open(pid)] = pid, asker
        _tell(asker, pid)
        return None

    def _end(self, fork: int) -> None:
        pid, asker = self._forks.pop(fork)
        os.close(fork)
        with asker:
            _tell(asker, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _kill(self, descriptor: int) -> None:
        for pid, asker in self._forks.values():
            if asker.fileno() == descriptor:
                os.kill(pid, signal.SIGKILL)

    def _leave(self) -> NoReturn:
        for pid, _ in self._forks.values():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(Path(self._listening.getsockname()).parent)
        os._exit(0)


def _tell(asker: socket.socket, number: int) -> None:
    """Send a number to who asked, if that is still there."""
    with contextlib.suppress(OSError):
        asker.send(str(number).encode())


def ask(place: str, words: list[str]) -> int:
    """Have the command run; return its exit code, or end by the signal that ended it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(place)
    early: list[int] = []
    for number in HANDED_ON:
        signal.signal(number, lambda number, _: early.append(number))
    request = {"words": words, "cwd": str(Path.cwd()), "env": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
    pid = int(connection.recv(100))

    def hand_on(number: int, _: object = None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its exit code is on its way
            os.kill(pid, number)

    for number in HANDED_ON:
        signal.signal(number, hand_on)
    for missed in early:
        hand_on(missed)
    code = int(connection.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code


def main() -> None:
    """Be the server, and in its forks the trainer."""
    import gc
    import importlib
    import runpy

    listening = socket.socket(fileno=int(sys.argv[2]))
    # Ctrl-C is for who started this. Blocked, not ignored: one that a fork gets before it can take it is kept for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    gc.disable()
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.freeze()  # or the collector of each fork has the memory of all modules copied
    gc.enable()
    asked = Server(listening).serve()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stdout, sys.stderr = (open(end, "w", closefd=False, buffering=1) for end in (1, 2))  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = ["train.run", *asked["words"]]
    runpy.run_module("train.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        main()
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
