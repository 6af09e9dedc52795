"""A folder for what a measurement writes while it runs, gone however the measurement ends."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from train.spec.interrupts import deferred

PREFIX = "study-bench-"
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a process from outside, beside Ctrl-C: `kill`, a job's time limit, a terminal that is closed."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder and remove it after the block: at its end, on an exception, on Ctrl-C and on SIGTERM.

    A signal of ENDING unwinds the block, as an exception that only ends processes, so that what the block has started
    is ended first; then the folder goes, and the process ends by that signal as it would have without.
    """
    with _unwound(), _folder() as folder:
        yield folder


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        yield folder
    finally:
        try:
            _remove(folder)
        except (KeyboardInterrupt, SystemExit):  # it came as this began, or a signal of ENDING in the middle
            _remove(folder)
            raise


def _remove(folder: Path) -> None:
    with deferred():
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _unwound() -> Iterator[None]:
    """Let signals of ENDING raise SystemExit in the block, once, and end the process when it is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        if len(received) == 1:  # another one while the block is left would keep it from clearing up
            raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in ENDING}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # nohup stays in force
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number] or signal.SIG_DFL)
        if received:
            signal.raise_signal(received[0])
