"""Append-only metrics: one JSON object a line, each step of each kind once on each path, whatever was killed when.

A rollback begins a new path: the run takes steps again on other batches. Its record has the number of the path that it
begins (1, 2, … in the order of the file; records of the first path have no number), and how far the run went back:
what earlier paths have of later steps is abandoned, and stays readable. `analysis.inputs.recorded` tells them apart.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.runtime.console import warn

ROLLBACK = "rollback"
"""The kind of record that begins a new path; its metrics say where: `to_step`."""


@dataclass(frozen=True)
class Rollback:
    """A return to an earlier step, as its record says it: `path` is the one that it began.

    step: after which the run went back. to_step, to_tokens: where to. sequences: training sequences consumed by then,
    which the new path does not read again. spikes: the run's until then; None where it went back for another reason.
    """

    path: int
    step: int
    to_step: int
    to_tokens: int
    sequences: int
    spikes: int | None

    def metrics(self) -> dict[str, float]:
        """Return what its record holds."""
        found = {"to_step": self.to_step, "to_tokens": self.to_tokens, "sequences": self.sequences}
        return {name: float(v) for name, v in {**found, "spikes": self.spikes}.items() if v is not None}


def from_here(rollbacks: Sequence[Rollback], step: int) -> list[Rollback]:
    """Return which rollbacks after a checkpoint, of step `step`, led to where a run that resumes from it goes on.

    The latest that went back to that step, and those before it that the run knew of then: all of them, as a rollback
    keeps what the run has counted, until one for another reason than a spike. There it had resumed from an earlier
    checkpoint, as later ones were lost: what it did not resume from then was not counted either.
    """
    known: list[Rollback] = []
    latest: float = step
    for one in reversed(rollbacks):
        if step <= one.to_step <= latest:
            known.append(one)
            latest = one.to_step if one.spikes is None else math.inf
    return known[::-1]


@dataclass
class Written:
    """What a file holds: the last step, and tokens, of each (path, kind), and the rollbacks in their order."""

    last: dict[tuple[int, str], int] = field(default_factory=dict)
    rollbacks: list[Rollback] = field(default_factory=list)
    tokens: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The path with the largest number."""
        return max((path for path, _ in self.last), default=0)

    def reached(self, path: int, kind: str) -> tuple[int, int]:
        """Return the last step and tokens of a kind on a path; where that has none, those that it began behind."""
        place = (path, kind)
        if place in self.last:
            return self.last[place], self.tokens.get(place, 0)
        begun = next((one for one in self.rollbacks if one.path == path), None)
        return (-1, -1) if begun is None else (begun.to_step, begun.to_tokens)

    def take_in(self, record: Mapping[str, Any]) -> None:
        """Add a record; an error, and nothing is added, if a field is missing or is not a number."""
        number, kind, step = int(record.get("path", 0)), str(record["kind"]), int(record["step"])
        # Files of earlier versions have rollbacks that begin no path: all of their records are of the first.
        rollback = _rollback(record) if kind == ROLLBACK and number else None
        place, tokens = (number, kind), record.get("tokens")
        self.last[place] = max(step, self.last.get(place, -1))
        self.tokens[place] = max(tokens if isinstance(tokens, int) else 0, self.tokens.get(place, 0))
        self.rollbacks += [rollback] if rollback is not None else []


class MetricsFile:
    """`metrics.jsonl` of one run, open for appending. `path` is the number of the path that is written.

    Opening cuts off a last line that a killed process left torn, and learns what the file holds. A resumed run passes
    steps of its path again that it had written before; their values would be the same, so they are not written again.
    What cannot be written, as the disk is full, is kept for when there is room: `sync` says whether all of it is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: deque[bytes] = deque()
        self.written = repair(path)
        self.path = self.written.newest
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, step: int, tokens: int, metrics: Mapping[str, float]) -> bool:
        """Append one record unless this path has this step of this kind; return whether it had not.

        A rollback (its metrics name `to_step`) begins the next path, to which it and all after it belong.
        """
        if kind == ROLLBACK:
            self.path = max(self.written.newest, self.path) + 1
        elif step <= self.written.last.get((self.path, kind), -1):
            return False
        record: dict[str, Any] = {"kind": kind, "step": step, "tokens": tokens, "time": round(time.time(), 3)}
        record |= {"path": self.path} if self.path else {}
        record["metrics"] = dict(metrics)
        line = json.dumps(record, allow_nan=False) + "\n"
        told = bool(self._unwritten)
        self._unwritten.append(line.encode())
        self.written.take_in(record)
        try:
            self._catch_up()
        except OSError as error:
            if not told:
                warn(f"metrics are kept in memory until they can be written: {error}")
        return True

    def _catch_up(self) -> None:
        """Write what could not be written so far; OSError that names the file where that still cannot be."""
        try:
            while self._unwritten:
                self._append(self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def _append(self, data: bytes) -> None:
        """Append all of it; OSError, and nothing appended, where there is no room: a full disk takes a part first."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            if written:
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise

    def sync(self) -> None:
        """Wait until the records are on disk: a checkpoint must not be newer than the metrics that led to it.

        OSError where some of them cannot be written.
        """
        self._catch_up()
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file, with what can still be written."""
        with contextlib.suppress(OSError):
            self._catch_up()
        os.close(self._fd)


def repair(path: Path) -> Written:
    """Cut off what follows the last whole record of the file, if it is there; return what it holds."""
    written = Written()
    if not path.exists():
        return written
    whole = 0
    with path.open("rb+") as file:
        for line in file:
            if not _take_in(written, line):
                break
            whole += len(line)
        if whole < path.stat().st_size:
            file.truncate(whole)
            os.fsync(file.fileno())
    return written


def _take_in(written: Written, line: bytes) -> bool:
    """Add a line to what the file holds; return whether it is a whole record."""
    if not line.endswith(b"\n"):
        return False
    try:
        written.take_in(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return False
    return True


def _rollback(record: Mapping[str, Any]) -> Rollback:
    said = record["metrics"]
    to, tokens, sequences = (int(said.get(name, 0)) for name in ("to_step", "to_tokens", "sequences"))
    spikes = said.get("spikes")
    return Rollback(
        int(record["path"]), int(record["step"]), to, tokens, sequences, None if spikes is None else int(spikes)
    )
