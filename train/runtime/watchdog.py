"""The watchdog between ranks: where one of them hangs, every rank dumps its stacks, and the run ends.

Each rank has a thread that looks whether its training moves. The first one that does not move for the limit raises an
alarm in the store at which the ranks met; all of them, the hanging one included, then write the stacks of their
threads to standard error and what the flight recorder knows of their messages to a file, and exit. A rank that is
stopped or gone is named by the others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from train.runtime.distributed import World, meeting_store
from train.spec.config import RuntimeConfig

FAILED = 1
GRACE = 10.0
"""How long ranks wait for one another's stacks once there is an alarm [s]."""
_ALARM, _TOLD = "alarm", "told"


class Store(Protocol):
    """Where ranks leave notes for each other: torch.distributed.Store."""

    def set(self, key: str, value: str, /) -> None:
        """Leave a note."""

    def get(self, key: str, /) -> bytes:
        """Return a note, waiting for it."""

    def check(self, keys: list[str], /) -> bool:
        """Say whether all of these notes are there."""


class Watchdog:
    """Ends the process when training has not moved for `seconds`; until the first step for `first_seconds`.

    `folder` is where the flight recorder's file goes; `leave` ends the process (os._exit outside tests).
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        folder: Path,
        *,
        seconds: float,
        first_seconds: float,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._store, self._rank, self._size, self._folder = store, rank, size, folder
        self._seconds, self._first_seconds, self._leave = seconds, max(seconds, first_seconds), leave
        self._began: int | None = None
        self._step, self._moved, self._limit = 0, time.monotonic(), self._first_seconds
        self._main = threading.main_thread().ident
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._moved = time.monotonic()
        self._thread.start()

    def beat(self, step: int, allow: float = 0.0) -> None:
        """Say that training moves: after a step, a micro-batch of validation, a checkpoint.

        What comes next may take `allow` seconds if that is longer than usual.
        """
        self._began = step if self._began is None else self._began
        usual = self._seconds if step > self._began else self._first_seconds
        self._step, self._moved, self._limit = step, time.monotonic(), max(usual, allow)

    def close(self) -> None:
        """Stop watching."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        pause = min(2.0, self._seconds / 10)
        while not self._done.wait(pause):
            # Should this thread get no turn, as a call keeps the interpreter to itself, this ends the process.
            faulthandler.dump_traceback_later(self._limit + 2 * GRACE, exit=True)
            try:
                if time.monotonic() - self._moved > self._limit and not self._store.check([_ALARM]):
                    self._store.set(_ALARM, f"rank {self._rank} has not moved for {self._limit:.0f} s")
                alarmed = self._store.check([_ALARM])
            except Exception:  # the store is gone and its rank with it: the training's own messages fail as well
                return
            if alarmed and not self._done.is_set():
                self._report()
                return

    def _report(self) -> None:
        frame = sys._current_frames().get(self._main or 0)
        try:
            why = self._store.get(_ALARM).decode()
        except Exception:
            why = "the store of the ranks is gone"
        print(f"\nTIMEOUT: {why}; rank {self._rank} is at step {self._step}: {place(frame)}", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        path = self._folder / f"flight-rank-{self._rank}.json"
        try:
            path.write_text(json.dumps(flight_record()), encoding="utf-8")
            print(f"latest messages between ranks: {path}", file=sys.stderr)
        except OSError as error:  # a full disk must not keep the ranks from ending
            print(f"the latest messages between ranks could not be written: {error}", file=sys.stderr)
        self._gather(frame)
        sys.stdout.flush()
        sys.stderr.flush()
        if self._rank == 0:
            time.sleep(1.0)  # the store goes with this process
        self._leave(FAILED)

    def _gather(self, frame: FrameType | None) -> None:
        """Wait for all ranks' reports; the first rank that is there prints where each of them stands."""
        keys = [f"stands/{rank}" for rank in range(self._size)]
        try:
            self._store.set(keys[self._rank], f"step {self._step}, {place(frame)}")
            limit = time.monotonic() + GRACE
            while not self._store.check(keys) and time.monotonic() < limit:
                time.sleep(0.1)
            there = [self._store.check([key]) for key in keys]
            if there.index(True) != self._rank:
                # Should this rank go now, the first one's messages fail, and it ends before it has told.
                while not self._store.check([_TOLD]) and time.monotonic() < limit:
                    time.sleep(0.1)
                return
            for rank, key in enumerate(keys):
                said = self._store.get(key).decode() if there[rank] else "says nothing: it is stopped or gone"
                print(f"rank {rank}: {said}", file=sys.stderr)
            sys.stderr.flush()
            self._store.set(_TOLD, "")
        except Exception as error:
            print(f"the other ranks cannot be asked: {error}", file=sys.stderr)


def watch(world: World, runtime: RuntimeConfig, folder: Path) -> Watchdog | None:
    """Return a watchdog that has begun to watch this rank, which has met the others; None for a world of one."""
    if world.size == 1:
        return None
    store = meeting_store(world, "watchdog")
    usual, first = runtime.timeout_seconds, runtime.start_seconds
    dog = Watchdog(store, world.rank, world.size, folder, seconds=usual, first_seconds=first)
    dog.start()
    return dog


def place(frame: FrameType | None) -> str:
    """Return where a thread stands: its innermost function, and the innermost one of this package."""
    if frame is None:
        return "no main thread"
    frames = traceback.extract_stack(frame)
    ours = [f for f in frames if f"{os.sep}train{os.sep}" in f.filename and "site-packages" not in f.filename]
    inner = frames[-1]
    text = f"in {inner.name} ({Path(inner.filename).name}:{inner.lineno})"
    if ours and ours[-1] is not inner:
        text += f", called by {ours[-1].name} ({Path(ours[-1].filename).name}:{ours[-1].lineno})"
    return text


def flight_record() -> dict[str, Any]:
    """Return what torch's flight recorders kept of this rank's messages, `entries` of all of them in one list.

    Torch has one recorder for messages on CPUs and another for NCCL's; either may be missing in a build of it.
    """
    from torch._C import _distributed_c10d as c10d

    found: dict[str, Any] = {"entries": []}
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            record = json.loads(dump())
        except (RuntimeError, ValueError):
            continue
        found = {**record, **found, "entries": [*found["entries"], *record.get("entries", [])]}
    return found
