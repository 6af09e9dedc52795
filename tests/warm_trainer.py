"""A trainer that starts in a moment, for tests of what runs it: `STUDY_TRAINER=<what trainer() returns>`.

A process that has imported what every trainer imports, as a fork of the one that tests of the trainer use, listens at a
socket. What is started asks it for a fork of itself, which runs `python -m train.run`, or a module that stands for it,
in the asker's folder, with its environment and output; the asker hands on signals and ends as the fork does. If the
asker is killed, so is the fork.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.warm import Started

MOST = 1 << 17
"""Size of a request, nearly all of it an environment [bytes]."""
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
BEGIN_SECONDS = 300.0


def trainer(module: str = "train.run") -> str:
    """Return the command that stands for `python -m module`; what it asks runs as long as this process."""
    place, _ = _serving()
    return f"{sys.executable} -S -E {__file__} {place} {module}"


@functools.cache
def _serving() -> tuple[Path, Started]:
    """Return the socket at which trainers are asked for, and who listens there."""
    import atexit  # what is imported here who asks does not need: it begins sooner
    import shutil
    import tempfile

    from tests.forked import trainers

    place = Path(tempfile.mkdtemp(prefix="trainer-")) / "socket"
    atexit.register(shutil.rmtree, place.parent, ignore_errors=True)
    root, environment = Path(__file__).resolve().parents[1], {**os.environ, "OMP_NUM_THREADS": "1"}
    server = trainers().start("tests.warm_trainer", "serve", str(place), cwd=root, env=environment)
    end = time.monotonic() + BEGIN_SECONDS
    while not place.exists():
        assert server.poll() is None and time.monotonic() < end, "no trainer can be asked for"
        time.sleep(0.01)
    return place, server


class Server:
    """Forks for everyone who asks at a socket; who started it ends it, and all forks end with it."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # pid and who asked, by pidfd

    def serve(self) -> dict[str, Any]:
        """Return, in each fork, what that is to run."""
        while True:
            for descriptor in self._ready():
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
        for descriptor in (self._listening.fileno(), *self._forks, *askers):
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
            import ctypes

            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
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


def _tell(asker: socket.socket, number: int) -> None:
    """Send a number to who asked, if that is still there."""
    with contextlib.suppress(OSError):
        asker.send(str(number).encode())


def ask(place: str, module: str, words: list[str]) -> int:
    """Have the command run; return its exit code, or end by the signal that ended it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(place)
    early: list[int] = []
    for number in HANDED_ON:
        signal.signal(number, lambda number, _: early.append(number))
    request = {"module": module, "words": words, "cwd": str(Path.cwd()), "env": dict(os.environ)}
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

    from tests.forked import LOADED, USED

    # Ctrl-C is for who started this. Blocked, not ignored: one that a fork gets before it can take it is kept for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    gc.disable()
    for name in (*USED, *LOADED):  # there already, where this is a fork
        importlib.import_module(name)
    gc.freeze()  # or the collector of each fork has the memory of all modules copied
    gc.enable()
    place = Path(sys.argv[2])
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(place.with_suffix(".new")))
    listening.listen(64)
    place.with_suffix(".new").rename(place)  # who finds it is heard
    asked = Server(listening).serve()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stdout, sys.stderr = (open(end, "w", closefd=False, buffering=1) for end in (1, 2))  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [asked["module"], *asked["words"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        main()
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2], sys.argv[3:]))
