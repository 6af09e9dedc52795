"""Reading and writing small files that other processes read and write at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from study.storage.locks import LinkLock, kind_of
from study.storage.processes import has_ended

RESERVE_BYTES = 65_536
BLOCK_BYTES = 16_384
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""How long a process waits before it asks for a lock again: twice as long each time [s]."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace the file by rename after an fsync: a reader sees all of the old content or all of the new."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            with staged.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of the disk the path that is written: a write through a descriptor, when it fails, names none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object atomically."""
    write_atomic(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None where the file is absent or not (yet) one whole object."""
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_text(path: Path | str) -> str:
    """Return a text file's content, by bare system calls: a look at a study reads tens of thousands of small files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, BLOCK_BYTES)
        if len(data) == BLOCK_BYTES:
            while more := os.read(descriptor, BLOCK_BYTES):
                data += more
    finally:
        os.close(descriptor)
    return data.decode("utf-8")


def file_size(path: Path) -> int:
    """Return the size of a file [bytes]; 0 where it is missing or cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def folder_size(folder: Path) -> int:
    """Return the size of a folder's files [bytes], links not followed; files that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total


def tail(path: Path, size: int = 8192) -> str:
    """Return the last `size` bytes of a text file, from the first whole line in them; "" where it is absent."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            data = file.read()
    except OSError:
        return ""
    text = data.decode("utf-8", errors="replace")
    # The end of one very long line still says more than nothing.
    return text if end <= size else text.partition("\n")[2] or text


class DiskReserve:
    """Room on a disk, held by a file of zeros until it is needed to write down that the disk was full."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES, *, required: bool = False) -> None:
        """Take it. required: raise OSError where there is no such room, rather than hold what there is."""
        self._path = path
        try:
            with naming(path):
                path.write_bytes(bytes(size))
        except BaseException as error:
            if required or not isinstance(error, OSError):
                self.release()
                raise
            # Full already: whoever writes next will say so.

    def release(self) -> None:
        """Give the room back."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def last_lines(path: Path, count: int = 12) -> list[str]:
    """Return the last lines of a text file that are not blank."""
    return [line.rstrip() for line in tail(path).splitlines() if line.strip()][-count:]


@contextmanager
def locked(path: Path, timeout: float = -1) -> Iterator[Callable[[], bool]]:
    """Hold the lock file while the block runs; wait `timeout` seconds for it (-1: for ever), then TimeoutError.

    A lock ends with its holder, however that dies. The block gets what tells whether it still holds the lock: without
    POSIX locks another process may have taken it over while this one was suspended. See :mod:`study.storage.locks`.
    """
    if kind_of(path) == "link":
        links = LinkLock(path)
        if not links.acquire(timeout):
            raise TimeoutError(held_by(path, links.holder()))
        try:
            yield lambda: links.held
        finally:
            links.release()
        return
    import fcntl

    # Asked again and again, each time at the price of a system call: where a file server holds the locks, a call that
    # waits may be answered much later than the lock is free.
    end, pause = time.monotonic() + timeout, FIRST_PAUSE
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if timeout >= 0 and end <= time.monotonic():
                    raise TimeoutError(held_by(path, tail(path, 256).split())) from None
                time.sleep(pause if timeout < 0 else min(pause, max(0.0, end - time.monotonic())))
                pause = min(2 * pause, LONGEST_PAUSE)
        _sign(file)
        yield lambda: True


def held_by(path: Path, holder: Sequence[str]) -> str:
    """Return who has a lock (host and process number, where they are known) and what a person can do about it."""
    if len(holder) < 2 or has_ended(holder[0], holder[1]):  # what is written there is of an earlier holder
        return f"{path} is held by another process: try again when that has ended"
    host, pid = holder[0], holder[1]
    here = f"kill {pid}" if host == os.uname().nodename else f"kill {pid} on {host}"
    return (
        f"{path} is held by another process: {pid} on {host}. Wait for it, or end it there ({here}) and give the "
        "command again"
    )


def _sign(file: IO[str]) -> None:
    """Write into a lock's file who holds it. A full disk keeps nobody from locking."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        # Not through the buffer: what does not fit on the disk would fail again when the file is closed.
        os.write(file.fileno(), f"{os.uname().nodename} {os.getpid()}\n".encode())


class RunLock:
    """The lock of a run: one that the trainer inherits, so that it lasts as long as anyone advances it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a")
        self._links = LinkLock(path) if kind_of(path) == "link" else None

    def acquire(self) -> bool:
        """Take the lock without waiting; False where another attempt holds it."""
        import fcntl

        if self._links is not None:
            return self._links.acquire(0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @classmethod
    def is_free(cls, path: Path) -> bool:
        """Return whether a lock is free; False where it cannot be tried."""
        try:
            lock = cls(path)
        except OSError:
            return False
        try:
            return lock.acquire()
        except OSError:
            return False
        finally:
            lock.close()

    def fileno(self) -> int:
        """Return the descriptor that a child inherits to keep the lock."""
        return self._file.fileno()

    def close(self) -> None:
        """Let go; the lock stays with a child that inherited it."""
        self._file.close()
        if self._links is not None:
            self._links.release()
