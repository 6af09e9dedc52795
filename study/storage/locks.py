"""How processes exclude each other in a study's folder: flock where it works, symbolic links where it does not.

Some shared file systems have no working `flock`: it fails, or every process gets it. There a lock is a row of links
`NAME.1`, `NAME.2`, …: making one is atomic everywhere, and who made the highest one holds the lock until there is a
`NAME.<n>.done` beside it. A holder that died is told by its process where that is on this host, else by a link that
nobody has touched for a while; ending its turn twice does no harm, and nobody can end a later one by mistake.

Which kind a study uses must be the same for all of its processes, so it is written down in the study's folder.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from study.storage import processes

MARKER = ".locks"
KINDS = ("auto", "posix", "link")
BEAT_SECONDS = 5.0
STALE_SECONDS = 30.0
FIRST_WAIT, LONGEST_WAIT = 0.001, 0.05


def choose(folder: Path, wanted: str) -> str:
    """Decide how a study's processes exclude each other, and write that down where it is not `posix`; return the kind.

    What was written down before stays, unless `wanted` says otherwise: then nobody may be at work in the study.
    """
    if wanted not in KINDS:
        raise ValueError(f"paths.locks={wanted!r} is not allowed: {', '.join(KINDS)}")
    folder.mkdir(parents=True, exist_ok=True)
    known = kind_of(folder / "any")
    kind = wanted if wanted != "auto" else known if known == "link" or works(folder) else "link"
    if kind == "link" and known != "link":
        _write_down(folder)
    elif kind == "posix" and known == "link":
        (folder / MARKER).unlink()
    return kind


def kind_of(lock: Path) -> str:
    """Return how a lock is to be taken: as its study's folder says, which is its own or the one above."""
    return "link" if (lock.parent / MARKER).exists() or (lock.parent.parent / MARKER).exists() else "posix"


def works(folder: Path) -> bool:
    """Say whether flock excludes anybody here: a second descriptor must not get what a first one holds."""
    import fcntl

    probe = folder / f".probe.{socket.gethostname()}.{os.getpid()}"
    try:
        with probe.open("a") as first, probe.open("a") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


class LinkLock:
    """A lock of links; not to be taken twice by one process. stale: silence after which another host's holder is dead.

    While it is held a thread touches its link, so that other hosts see its holder live.
    """

    def __init__(self, path: Path, stale: float = STALE_SECONDS) -> None:
        self._path, self._stale = path, stale
        self._number = 0
        self._end = threading.Event()

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock; wait `timeout` seconds for it (-1: for ever) and return False where others have it."""
        limit, wait = time.monotonic() + timeout, FIRST_WAIT
        while not self._try():
            if timeout >= 0 and time.monotonic() >= limit:
                return False
            time.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(LONGEST_WAIT, 2 * wait)
        return True

    def release(self) -> None:
        """Let go. Nothing happens where others have ended its turn already."""
        self._end.set()
        if self.held:
            _touch_new(self._done(self._number))
        self._number = 0

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock: while it was suspended another may have taken it over."""
        turn = self._number
        return turn > 0 and self._link(turn).is_symlink() and not self._done(turn).is_symlink()

    def holder(self) -> list[str]:
        """Return host and process number of who has the lock now; nothing where nobody does, or that is not known."""
        number = max(self._numbers(), default=0)
        try:
            host, pid, _ = str(self._link(number).readlink()).rsplit(":", 2)
        except (OSError, ValueError):
            return []
        return [host.partition("/")[0], pid]

    def _try(self) -> bool:
        number = max(self._numbers(), default=0)
        if number and not self._done(number).is_symlink():
            if not self._is_dead(number):
                return False
            _touch_new(self._done(number))
        mine = number + 1
        try:
            self._link(mine).symlink_to(f"{_host()}:{os.getpid()}:{_started(os.getpid())}")
        except FileExistsError:
            return False
        numbers = self._numbers()
        if max(numbers) > mine:  # others came and went since the names were read
            self._link(mine).unlink(missing_ok=True)
            return False
        self._number = mine
        for old in numbers:
            if old < mine:
                self._link(old).unlink(missing_ok=True)
                self._done(old).unlink(missing_ok=True)
        self._end = threading.Event()
        threading.Thread(target=self._beat, args=(self._link(mine), self._end), daemon=True).start()
        return True

    def _beat(self, link: Path, end: threading.Event) -> None:
        while not end.wait(BEAT_SECONDS):
            try:
                os.utime(link, None, follow_symlinks=False)
            except OSError:
                return

    def _is_dead(self, number: int) -> bool:
        try:
            host, pid, started = str(self._link(number).readlink()).rsplit(":", 2)
            touched = os.lstat(self._link(number)).st_mtime
        except OSError:
            return False  # its turn has ended meanwhile
        if host == _host():
            return _started(int(pid)) != started and not _is_open(self._path)
        return self._clock() - touched > self._stale

    def _clock(self) -> float:
        """Return the file server's time, which is also what links are touched with."""
        probe = self._path.with_name(f".{self._path.name}.now.{socket.gethostname()}.{os.getpid()}")
        probe.write_text("", encoding="utf-8")
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return now

    def _numbers(self) -> list[int]:
        prefix = f"{self._path.name}."
        ends = [one.name.removeprefix(prefix) for one in self._path.parent.iterdir() if one.name.startswith(prefix)]
        return [int(end) for end in ends if end.isdigit()]

    def _link(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _done(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}.done")


def _touch_new(path: Path) -> None:
    with suppress(FileExistsError):
        path.symlink_to("done")


def _host() -> str:
    """Return what processes share that can see each other by number: containers of one host may not."""
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').readlink()}".replace(":", "")


def _started(pid: int) -> str:
    """Return when a process of this host was started; "" where that is not known."""
    return processes.started(pid) or ""


def _is_open(path: Path) -> bool:
    """Say whether another process of this host has a file open: the trainer inherits its run's lock."""
    wanted = path.absolute()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if any(one.readlink() == wanted for one in (entry / "fd").iterdir()):
                    return True
    return False


def _write_down(folder: Path) -> None:
    staged = folder / f"{MARKER}.{socket.gethostname()}.{os.getpid()}"
    staged.write_text("link\n", encoding="utf-8")
    staged.replace(folder / MARKER)
