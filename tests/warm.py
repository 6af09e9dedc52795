"""Processes that begin as forks of one that has imported what they need: `Warm("train.loop").start("train.run", …)`.

A fresh interpreter takes seconds of a core to import torch or MLflow; tests that start dozens of them would do little
else. What is started is a real process with a pid, signals, pipes and an exit code of its own, that runs the module as
`python -m` does and ends as an interpreter ends. Not for tests of what a start itself loads or costs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any, NoReturn

from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parents[1]
MOST = 1 << 17
"""Size of a request, nearly all of it an environment [bytes]."""
SHARED = "WARM_SHARED"
"""Names a folder where processes that ask for the same share what has imported it: those of one test session."""
LONGEST = 100
"""Characters in the path of a socket."""
READY, THREADED = b"ready", b"threaded"
HARMLESS = {"jemalloc_bg_thd"}
"""Threads that mind forks by themselves: an allocator's."""
ONE_AT_A_TIME = Lock()
"""Held while `warm` looks for a process and makes it: of two that threads made at once, one would go with its forks."""


class Process:
    """A process that was started warm: what tests use of `subprocess.Popen[str]`, by the same names."""

    def __init__(self, args: list[str], pid: int, stdout: IO[str], stderr: IO[str], status: int) -> None:
        self.args, self.pid, self.stdout, self.stderr = args, pid, stdout, stderr
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return its exit code, a signal's as a negative one; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended; subprocess.TimeoutExpired if that takes longer [s]."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it printed to stdout and stderr once it has ended."""
        found: dict[IO[str], str] = {}
        readers = [Thread(target=_drain, args=(file, found), daemon=True) for file in (self.stdout, self.stderr)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:  # a process of its own may still hold the pipe
            reader.join(timeout)
        return found.get(self.stdout, ""), found.get(self.stderr, "")

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if waiting.poll(None if timeout is None else timeout * 1000):
                said = os.read(self._status, 100)
                assert said, "the process that started this one has gone"
                os.close(self._status)
                self.returncode = int(said)
        return self.returncode


Started = Process | subprocess.Popen[str]
"""A process that was started warm, or a fresh one."""


def _drain(file: IO[str], found: dict[IO[str], str]) -> None:
    if not file.closed:
        found[file] = file.read()


def fresh(module: str, *words: str, cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the same in an interpreter of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", module, *words], cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True
    )


class Warm:
    """A process that has imported `modules` and forks itself on request; it ends with this one, and ends its forks.

    home: the folder that it starts in and imports from, the repository or a copy of it. It is a fork of the process
    that did the importing: this one's, or another's where SHARED names a folder and that asked for the same before.
    """

    def __init__(self, modules: Iterable[str], environment: Mapping[str, str], home: Path = REPOSITORY) -> None:
        self._asking = Lock()  # an answer is that of the request before it, whichever thread asked
        self._importer: Importer | None = None
        said, modules = b"", tuple(modules)
        with _place(modules, environment, home) as place:
            while not said:
                if self._importer is not None:
                    raise AssertionError(f"{modules} cannot be imported: exit code {self._importer.server.wait()}")
                with FileLock(f"{place}.lock"):
                    found = _connected(place)
                    if found is None:
                        self._importer = Importer(modules, environment, home, place)
                        found = _connected(place)
                assert found is not None, "who listens is there"
                self._socket = found
                with contextlib.suppress(ConnectionError):  # who imported it for others has gone
                    said = self._socket.recv(100)
        state, pid = said.split()
        self.pid, self._forks = int(pid), state == READY

    def start(self, module: str, *words: str, cwd: Path, env: Mapping[str, str]) -> Started:
        """Start `python -m module words…` in a folder with this environment, its output in pipes."""
        if not self._forks:
            return fresh(module, *words, cwd=cwd, env=env)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        try:
            with Path(os.devnull).open() as nothing:
                pid, status = self._fork(module, words, cwd, env, (nothing.fileno(), out_end, err_end))
        finally:
            os.close(out_end)
            os.close(err_end)
        return Process([module, *words], pid, os.fdopen(out), os.fdopen(err), status)

    def stand_in(self, module: str, *words: str, cwd: Path, env: Mapping[str, str]) -> int:
        """Run the same with the standard streams of this process; return its exit code once it has ended."""
        if not self._forks:
            return subprocess.run([sys.executable, "-m", module, *words], cwd=cwd, env=env, check=False).returncode
        pid, status = self._fork(module, words, cwd, env, (0, 1, 2))
        with Path(os.devnull).open() as nothing:
            return Process([module, *words], pid, nothing, nothing, status).wait()

    def _fork(
        self, module: str, words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> tuple[int, int]:
        """Have a fork run a module; return its pid and what says its exit code."""
        status, status_end = os.pipe()
        request = {"module": module, "words": words, "cwd": str(cwd), "env": dict(env)}
        text = json.dumps(request).encode()
        assert len(text) < MOST, f"{len(text)} bytes of arguments and environment"
        with self._asking:
            socket.send_fds(self._socket, [text], [*streams, status_end])
            os.close(status_end)
            said = self._socket.recv(100)
        assert said, "no process to fork: it has ended"
        return int(said), status


class Importer:
    """A process that imports, and forks one that forks for everyone who connects to `place`; it ends with this one."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], home: Path, place: Path) -> None:
        self._life, theirs = socket.socketpair()
        new = place.with_suffix(".new")
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(new))
            listening.listen(64)
            new.rename(place)  # that of one that has gone is there still
            ends = [theirs.fileno(), listening.fileno()]
            self.server = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", *map(str, ends), *modules],
                cwd=home,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=ends,
            )


@contextlib.contextmanager
def _place(modules: Sequence[str], environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield where the process that has imported these listens, for this process alone or for all that share it."""
    path = os.environ.get("PYTHONPATH", "")
    same = json.dumps([sys.executable, str(home), modules, {"PYTHONPATH": path, **environment}], sort_keys=True)
    shared = Path(os.environ.get(SHARED, ""), hashlib.sha256(same.encode()).hexdigest()[:12])
    if SHARED in os.environ and len(str(shared)) < LONGEST:
        shared.parent.mkdir(exist_ok=True)
        yield shared
    else:
        with tempfile.TemporaryDirectory(prefix="warm-") as own:
            yield Path(own, "socket")


def _connected(place: Path) -> socket.socket | None:
    """Return a connection to who listens there; None where nobody does."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        found.connect(str(place))
    except OSError:
        found.close()
        return None
    return found


def warm(*modules: str, **environment: str) -> Warm:
    """Return the one of this process that has imported these, with these variables; started when first asked for."""
    with ONE_AT_A_TIME:
        return _warm(*modules, **environment)


@functools.cache
def _warm(*modules: str, **environment: str) -> Warm:
    return Warm(modules, environment)


def share(life: socket.socket, listening: socket.socket) -> socket.socket:
    """Fork for everyone who connects; return the connection in the fork. Who started this has gone: leave."""
    state = THREADED if other_threads() else READY
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that end are nobody's to ask for
    waiting = select.poll()
    waiting.register(life, 0)
    waiting.register(listening, select.POLLIN)
    while life.fileno() not in {descriptor for descriptor, _ in waiting.poll()}:
        connection, _ = listening.accept()
        if state == THREADED:
            connection.send(b"%s %d" % (state, os.getpid()))
        elif os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            life.close()
            listening.close()
            connection.send(b"%s %d" % (state, os.getpid()))
            return connection
        connection.close()
    os._exit(0)


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for every request; return it in the fork. What asked has gone: end the forks and leave."""
    running: dict[int, tuple[int, int]] = {}  # pid and status pipe by pidfd
    while True:
        waiting = select.poll()
        for descriptor in (connection.fileno(), *running):
            waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll()}
        for descriptor in ready & running.keys():
            pid, status = running.pop(descriptor)
            os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os.close(status)
            os.close(descriptor)
        if connection.fileno() not in ready:
            continue
        asked, ends, _, _ = socket.recv_fds(connection, MOST, 4)
        if not asked:
            _leave(pid for pid, _ in running.values())
        *streams, status = ends
        pid = os.fork()
        if pid == 0:
            for number, end in enumerate(streams):
                os.dup2(end, number)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            sys.stdout, sys.stderr = (open(end, "w", closefd=False, buffering=1) for end in (1, 2))  # noqa: SIM115
            for descriptor in (*ends, connection.detach(), *running, *(end for _, end in running.values())):
                os.close(descriptor)
            return dict(json.loads(asked))
        for end in streams:
            os.close(end)
        running[os.pidfd_open(pid)] = pid, status
        connection.send(str(pid).encode())


def _leave(forks: Iterable[int]) -> NoReturn:
    for pid in forks:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def other_threads() -> set[str]:
    """Return the names of this process' threads that may hold locks, which nobody would let go of in a fork."""
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            threads.append((task / "comm").read_text().strip())
    return {*threads[1:]} - HARMLESS


def main() -> None:
    """Import, serve, and in each fork run what was asked for."""
    (life, listening), modules = (socket.socket(fileno=int(end)) for end in sys.argv[1:3]), sys.argv[3:]
    # Ctrl-C is for who started this. Blocked, not ignored: one that a fork gets before it can take it is kept for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # or the collector of each fork has the memory of all modules copied
    gc.enable()
    asked = serve(share(life, listening))
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = [asked["module"], *asked["words"]]
    sys.modules.pop(asked["module"], None)  # what is run is __main__
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
