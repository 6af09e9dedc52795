"""What a long search is at, on standard error: of one that answers within two seconds, nothing is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO

from study.text import estimate

AFTER = 2.0
"""A search that has taken this long is told of [s]."""
EVERY, EVERY_LINE = 0.5, 10.0
"""How often, on a terminal and in a file [s]."""


class Progress(Protocol):
    """Takes what a search does and how much of it is done; total 0: nobody knows how much there is."""

    def __call__(self, what: str, done: int, total: int = 0) -> None:
        """Take it in; called often."""


def silent(what: str, done: int, total: int = 0) -> None:
    """Say nothing."""


class Shown:
    """Progress as one line that is drawn anew on a terminal, and as a line now and then elsewhere."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._redraws = stream.isatty()
        self._begun = self._since = clock()
        self._what, self._said = "", float("-inf")

    def __call__(self, what: str, done: int, total: int = 0) -> None:
        """Say it, unless it is too early or was said just now."""
        now = self._clock()
        if what != self._what:
            self._what, self._since = what, now
        if now - self._begun < AFTER or now - self._said < (EVERY if self._redraws else EVERY_LINE):
            return
        self._said = now
        text = f"{what}: {done:,}" + (f" of {total:,}" if total else "")
        if total and done:
            text += f", {estimate((now - self._since) * (total - done) / done)} left"
        self._stream.write(f"\r{text}\x1b[K" if self._redraws else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave a terminal as it was."""
        if self._redraws and self._said > float("-inf"):
            self._stream.write("\r\x1b[K")
            self._stream.flush()
