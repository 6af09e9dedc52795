"""Following a live study: pass after pass, patient when the store is away, ending with a last complete pass."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType

from study.tracking.store import StoreAwayError
from study.tracking.syncer import Synced, Syncer

IDLE_SHARE = 0.01
"""A pass that finds nothing takes at most this share of the time until the next."""

LONGEST_SECONDS = 60.0
LAST_WAIT_SECONDS = 600.0


class Alarm:
    """Sleeps until the time is over or a signal comes; counts SIGTERMs (and SIGINTs, unless a parent takes them)."""

    def __init__(self, parent: int | None) -> None:
        self.rings = 0
        self._parent = parent
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._ring)
        signal.signal(signal.SIGINT, self._ring if parent is None else signal.SIG_IGN)

    def sleep(self, seconds: float) -> None:
        """Sleep, at most until the next signal; looks every second whether the parent is still there."""
        end = time.monotonic() + seconds
        while not self.over and (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._read], [], [], min(left, 1.0) if self._parent else left)
            if ready:
                os.read(self._read, 4096)

    @property
    def over(self) -> bool:
        """Whether it is time for the last pass: a signal came, or the parent has gone."""
        return self.rings > 0 or (self._parent is not None and os.getppid() != self._parent)

    def _ring(self, _: int, __: FrameType | None) -> None:
        self.rings += 1
        if self.rings > 1:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class Rhythm:
    """How long to sleep after a pass [s]."""

    interval: float
    failures: int = 0

    def idle(self, cost: float) -> tuple[float, Rhythm]:
        """Return the sleep after a pass that found nothing in `cost` seconds of CPU, and the rhythm from then on."""
        return max(self.interval, min(cost / IDLE_SHARE, LONGEST_SECONDS)), Rhythm(self.interval)

    def busy(self) -> tuple[float, Rhythm]:
        """Return the sleep after a pass that sent something."""
        return self.interval, Rhythm(self.interval)

    def away(self) -> tuple[float, Rhythm]:
        """Return the sleep after a pass that failed: twice as long each time."""
        return min(self.interval * 2**self.failures, LONGEST_SECONDS), replace(self, failures=self.failures + 1)


def follow(
    connect: Callable[[], Syncer], interval: float, parent: int | None, report: Callable[[str], None]
) -> tuple[Synced, str]:
    """Sync every `interval` seconds until told to end, then once more; return what was done and what was not.

    `connect` opens the store and may raise StoreAwayError, as every pass may: that is said once, and tried again.
    The second value is "" or why the last pass could not be made: the files still hold everything.
    """
    alarm, rhythm, total = Alarm(parent), Rhythm(interval), Synced()
    syncer: Syncer | None = None
    trouble = ""
    while True:
        last = alarm.over
        begun = time.process_time()
        steps = syncer.steps if syncer is not None else 0
        try:
            syncer = syncer or connect()
            done = syncer.sync(LAST_WAIT_SECONDS if last else interval)
            total = _add(total, done)
            cost = time.process_time() - begun
            seconds, rhythm = rhythm.busy() if done.calls else rhythm.idle(cost)
            if trouble:
                report("the tracking store is back")
            trouble = ""
        except (StoreAwayError, TimeoutError, OSError) as error:
            text = in_words(error)
            if not trouble:
                report(f"{text.partition(chr(10))[0]}; trying again until it works, nothing is lost")
            trouble = text
            # A store that fails now and then still takes what it takes: only one that takes nothing is left in peace.
            vain = syncer is None or syncer.steps == steps
            seconds, rhythm = rhythm.away() if vain else rhythm.busy()
        if last:
            return total, trouble
        alarm.sleep(seconds)


def in_words(error: Exception) -> str:
    """Return what went wrong: a file of the study's own by its path, which the store is not to be blamed for."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _add(total: Synced, new: Synced) -> Synced:
    return replace(
        new,
        created=total.created + new.created,
        values=total.values + new.values,
        calls=total.calls + new.calls,
        unreadable=total.unreadable + new.unreadable,
    )
