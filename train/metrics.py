"""Append-only metrics: one JSON object a line, each step of each kind exactly once, whatever was killed when."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from train.report import warn


class MetricsFile:
    """`metrics.jsonl` of one run, open for appending.

    Opening cuts off a last line that a killed process left torn, and learns the last step of each kind. A resumed run
    passes steps again that it had written before; their values would be the same, so they are not written again.
    What cannot be written, as the disk is full, is kept for when there is room: `sync` says whether all of it is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: deque[bytes] = deque()
        self._last = repair(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, step: int, tokens: int, metrics: Mapping[str, float]) -> bool:
        """Append one record unless this step of this kind is there; return whether it was not."""
        if step <= self._last.get(kind, -1):
            return False
        record = {"kind": kind, "step": step, "tokens": tokens, "time": round(time.time(), 3)}
        line = json.dumps({**record, "metrics": dict(metrics)}, allow_nan=False) + "\n"
        told = bool(self._unwritten)
        self._unwritten.append(line.encode())
        self._last[kind] = step
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


def repair(path: Path) -> dict[str, int]:
    """Cut off what follows the last whole record of the file, if it is there; return each kind's last step."""
    last: dict[str, int] = {}
    if not path.exists():
        return last
    whole = 0
    with path.open("rb+") as file:
        for line in file:
            record = _record(line)
            if record is None:
                break
            last[record[0]] = max(record[1], last.get(record[0], -1))
            whole += len(line)
        if whole < path.stat().st_size:
            file.truncate(whole)
            os.fsync(file.fileno())
    return last


def _record(line: bytes) -> tuple[str, int] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
        return str(record["kind"]), int(record["step"])
    except (ValueError, KeyError, TypeError):
        return None
