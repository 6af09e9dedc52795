"""Append-only logs of one record a line: a study's points, its ledger, and the events of its search.

A writer that is killed leaves a torn end: readers pass over it, and the next writer cuts it off, so that a torn append
costs itself and nothing else. Writers share a lock (study.storage.files.locked) and hold it from what they read until
they have appended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from study.storage.files import naming
from study.storage.shapes import WrongRecordError

R = TypeVar("R")


class Log(Generic[R]):
    """One process's view of a log. load: makes a record of a line; dump: the JSON of a record, which has no newline.

    what: a record in a user's words. remedy: what to do about a line that is none.
    """

    def __init__(
        self, path: Path, load: Callable[[bytes], R], dump: Callable[[R], str], what: str, remedy: str
    ) -> None:
        self.path = path
        self.records: list[R] = []
        """What has been read so far."""
        self.end = 0
        """So far has been read [bytes]."""
        self._load, self._dump, self._what, self._remedy = load, dump, what, remedy

    def read(self) -> list[R]:
        """Return the whole records that came since the last call. ValueError, naming the line, for a damaged one."""
        found, length = self.parse(read_from(self.path, self.end))
        self.end += length
        self.records += found
        return found

    def append(self, records: Iterable[R]) -> None:
        """Write records durably behind the last whole one: all of them or, after a kill, some first ones.

        Call it under the lock of all writers. What is appended behind all that was read here counts as read.
        """
        records = list(records)
        data = b"".join(map(self.encode, records))
        if not data:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            end = self.whole_end(descriptor)
            append_at(descriptor, data, end, self.path)
        finally:
            os.close(descriptor)
        if end == self.end:
            self.end += len(data)
            self.records += records

    def parse(self, data: bytes) -> tuple[list[R], int]:
        """Return the whole records at the beginning of `data`, which begins at `end`, and their length [bytes]."""
        found: list[R] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:  # not split: that takes the memory of the whole once more
            line, start = data[start:end], end + 1
            try:
                found.append(self._load(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                number = len(self.records) + len(found) + 1
                why = f" ({error})" if isinstance(error, WrongRecordError) else ""
                raise ValueError(
                    f"{self.path}:{number}: {line[:60].decode(errors='replace')!r} is not {self._what}{why}: the file "
                    f"was edited or damaged; {self._remedy}"
                ) from error
        return found, start

    def encode(self, record: R) -> bytes:
        """Return a record as its line."""
        return self._dump(record).encode() + b"\n"

    def whole_end(self, descriptor: int) -> int:
        """Return the offset behind the last whole record."""
        return end_of_whole_lines(descriptor)


def compact(record: Mapping[str, Any]) -> str:
    """Return a record as JSON without spaces; ValueError for a number that JSON has no word for."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def read_from(path: Path, offset: int) -> bytes:
    """Return what a file holds from `offset` [bytes] on; nothing where it is absent."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def append_at(descriptor: int, data: bytes, end: int, path: Path) -> None:
    """Write all of `data` durably at `end`, cutting off what follows; OSError that names the path, and nothing written.

    A disk that fills up takes a part of a write without a word.
    """
    with naming(path):
        os.ftruncate(descriptor, end)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], end + written)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise


def end_of_whole_lines(descriptor: int) -> int:
    """Return the offset after the last newline: what lies behind it was torn off by a kill."""
    block = 1 << 16
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - block)
        position = os.pread(descriptor, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0
