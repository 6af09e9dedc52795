"""The watch over a trainer from outside: progress or none, and what is kept of a run that hangs before it is killed.

Progress is a beat of the trainer (train.runtime.heartbeat) or, from a trainer that has none, a record in
metrics.jsonl; what it prints is none. The clock runs only while this process runs: SLURM suspends a job by stopping
all its processes, and time in which this one was suspended counts as two polls at most.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from study.process.children import Started, kill
from study.records.heartbeats import Beat, read_beat
from study.records.shapes import HANG, TIMED
from study.storage.files import file_size, read_json, tail, write_json
from study.storage.layout import AttemptFolder, RunFolder
from study.storage.shapes import read_record, record_in

LOOK_SECONDS = 1.0
MEDIANS = 10.0
STACK_SECONDS, SPY_SECONDS = 3.0, 20.0
PEERS_SECONDS = 15.0
FLOOR_SECONDS, START_SECONDS = 600.0, 1800.0


@dataclass(frozen=True)
class Bounds:
    """How long a run may stand still [s]: usually, and until it has begun. `peers`: its own watch between ranks."""

    floor: float = FLOOR_SECONDS
    start: float = START_SECONDS
    peers: float = 0.0


def limit(beat: Beat | None, pace: float | None, bounds: Bounds) -> float:
    """Return how long a rank may stand still now [s].

    max(10 x the median step, the floor), or longer where the rank said that what it does may take longer: a start, a
    compilation, a checkpoint. pace: seconds between the latest records of its metrics, for one that says nothing.
    Several ranks watch each other (train.runtime.watchdog) and know more than this does: they come first.
    """
    if beat is None:
        usual = max(bounds.floor, bounds.start) if pace is None else max(bounds.floor, MEDIANS * pace)
    else:
        usual = max(bounds.floor, MEDIANS * (beat.median or 0.0), beat.allow)
    return max(usual, bounds.peers)


class Patience:
    """How long one rank has made no progress, by a clock that runs only while this process polls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_look = clock()
        self._mark: object = None
        self.still = 0.0

    def look(self, mark: object) -> float:
        """Return how long the mark has been the same [s]."""
        now = self._clock()
        passed, self._last_look = now - self._last_look, now
        self.still = 0.0 if mark != self._mark else self.still + min(passed, 2 * LOOK_SECONDS)
        self._mark = mark
        return self.still


class Watch:
    """Watches the ranks of one attempt that this process has started: rank -> process."""

    def __init__(self, run: RunFolder, attempt: AttemptFolder, world: int, bounds: Bounds) -> None:
        self._run, self._attempt, self._world, self._bounds = run, attempt, world, bounds
        self._patience: dict[int, Patience] = {}
        self._before, _ = _records(run.metrics)
        self._next = 0.0
        self.hang: str | None = None

    def look(self, processes: Mapping[int, Started]) -> bool:
        """Look at them if it is time to; True where they hang: their stacks are kept by then, and they are killed."""
        now = time.monotonic()
        if now < self._next or not self._bounds.floor:
            return False
        self._next = now + LOOK_SECONDS
        living = {rank: p for rank, p in processes.items() if p.returncode is None}
        why = self._found_elsewhere(processes) or next(filter(None, (self._stands(rank) for rank in living)), None)
        if why is None or not living:
            return False
        self.hang = why
        self._end(living, why)
        return True

    def _stands(self, rank: int) -> str | None:
        """Return why a rank is taken to hang; None while it is not."""
        beat = read_beat(self._attempt.beat(rank))
        pace = None
        mark: object = beat
        if beat is None:
            mark, pace = _records(self._run.metrics)
            if mark == self._before:  # what an earlier attempt wrote says nothing of how long this one takes to start
                pace = None
        allowed = limit(beat, pace, self._bounds)
        still = self._patience.setdefault(rank, Patience()).look(mark)
        if still <= allowed:
            return None
        where = f" in {beat.phase} at step {beat.step}" if beat else ""
        node = f" on {beat.where}" if beat and beat.where else ""
        return f"rank {rank}{node} has not moved for {still:.0f} s{where} (it may stand still for {allowed:.0f} s)"

    def _found_elsewhere(self, mine: Mapping[int, object]) -> str | None:
        """Return why, where the watch over another rank has found that it hangs."""
        if self._world <= len(mine):
            return None
        said = read_record(self._attempt.hang, HANG)
        return None if said is None else str(said["why"])

    def _end(self, living: Mapping[int, Started], why: str) -> None:
        """Write down what is found, keep every rank's stacks, then kill."""
        first = not self._attempt.hang.exists()
        if first:
            beats = {str(rank): read_json(self._attempt.beat(rank)) for rank in range(self._world)}
            write_json(self._attempt.hang, {"why": why, "time": round(time.time(), 3), "beats": beats})
        for rank, process in living.items():
            text = stacks(process.pid, self._attempt.stderr(rank))
            self._attempt.stacks(rank).write_text(text, encoding="utf-8")
        if first:
            self._wait_for_peers()
        kill(living)
        keep_flight_records(self._run, self._attempt)

    def _wait_for_peers(self) -> None:
        """Give the watches of the other ranks time to keep their stacks: SLURM ends them with this one."""
        deadline = time.monotonic() + PEERS_SECONDS
        while time.monotonic() < deadline:
            if all(self._attempt.stacks(rank).exists() for rank in range(self._world)):
                return
            time.sleep(0.2)


def py_spy() -> str | None:
    """Return where py-spy is: beside this Python, which a job may run without its folder on PATH, or on PATH."""
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside or shutil.which("py-spy")


def stacks(pid: int, stderr: Path) -> str:
    """Return where every thread of a process stands: by py-spy where that is installed and may, else by itself.

    A trainer answers SIGQUIT with its stacks on standard error, also out of a call that never ends. One that is
    stopped is woken for that; it will be killed anyway.
    """
    kernel = _kernel(pid)
    spy = py_spy()
    if spy is not None:
        try:
            done = subprocess.run(
                [spy, "dump", "--pid", str(pid)], capture_output=True, timeout=SPY_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0:
            return f"{kernel}\n{done.stdout.decode(errors='replace')}"
    before = file_size(stderr)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
        os.kill(pid, signal.SIGCONT)
    said, deadline = "", time.monotonic() + STACK_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = _from(stderr, before)
        if now and now == said:
            break
        said = now
    return f"{kernel}\n{said or 'it answered SIGQUIT with no stacks'}\n"


def keep_flight_records(run: RunFolder, attempt: AttemptFolder) -> None:
    """Move what ranks wrote of their latest messages beside what else the attempt left."""
    for path in run.path.glob("flight-rank-*.json"):
        with contextlib.suppress(OSError):
            path.replace(attempt.path / path.name)


def _records(metrics: Path) -> tuple[object, float | None]:
    """Return a mark that changes with every record, and the median seconds between the latest ones."""
    try:
        size = metrics.stat().st_size
    except OSError:
        return 0, None
    rows = (record_in(line, TIMED) for line in tail(metrics, 16384).splitlines())
    times = [float(row["time"]) for row in rows if row is not None]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return size, statistics.median(gaps) if gaps else None


def _kernel(pid: int) -> str:
    """Return what the kernel says of a process and its threads: running, sleeping (on what), stopped."""
    lines = []
    with contextlib.suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError, IndexError, StopIteration):
                status = (task / "status").read_text(encoding="utf-8").splitlines()
                state = next(line.split(":", 1)[1].strip() for line in status if line.startswith("State:"))
                lines.append(f"thread {task.name}: {state}, {(task / 'wchan').read_text() or '0'}")
    return "\n".join([f"process {pid}", *lines])


def _from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
