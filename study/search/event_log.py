"""The search's event log: append-only, every record with its length and checksum, a torn end cut off and noted.

A record is one line: length of the JSON in bytes (8 hex digits), CRC-32 of it (8 hex digits), the JSON, a newline. A
writer that is killed in the middle leaves an end that does not check; the next one cuts it off, so that a torn append
costs itself and nothing else. Damage before the end is not repaired but named: there history is missing.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.storage.files import append_at

Record = dict[str, Any]
HEAD = 18
"""Bytes before the JSON: two numbers of eight hex digits, a space after each."""


@dataclass
class EventLog:
    """One reader's and writer's view of a log. Append only under the lock that all writers share."""

    path: Path
    records: list[Record] = field(default_factory=list)
    _end: int = 0

    def read(self) -> list[Record]:
        """Return the records that came since the last call, and keep them in `records`. ValueError if damaged."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._end)
                data = file.read()
        except FileNotFoundError:
            return []
        found, length = parse(data, self.path, self._end)
        self._end += length
        self.records += found
        return found

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write records durably behind everything read so far; all of them or, after a kill, some first ones.

        Call `read` before, under the same lock: what lies behind the last whole record is cut off. TimeoutError where
        whole records have come since: then this process has lost its lock without noticing.
        """
        data = b"".join(encode(record) for record in records)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            more = os.fstat(descriptor).st_size - self._end
            if more < 0 or (more and parse(os.pread(descriptor, more, self._end), self.path, self._end)[0]):
                raise TimeoutError(f"{self.path}: others have written meanwhile: this process was taken for dead")
            append_at(descriptor, data, self._end, self.path)
        finally:
            os.close(descriptor)
        self._end += len(data)
        self.records += [dict(record) for record in records]


def encode(record: Mapping[str, Any]) -> bytes:
    """Return a record as its line."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %08x %s\n" % (len(text), zlib.crc32(text), text)


def parse(data: bytes, path: Path, offset: int = 0) -> tuple[list[Record], int]:
    """Return the whole records at the beginning of `data` and their length in bytes; a torn end is left out.

    ValueError where a record that does not check is followed by one that does: that is damage, not a torn append.
    """
    records: list[Record] = []
    place = 0
    while place < len(data):
        record, size = _record(data, place)
        if record is None:
            if _whole_record_after(data, place):
                raise ValueError(
                    f"{path}: the record at byte {offset + place} is damaged and others follow it: restore the file "
                    "from a backup, or cut it there to go on from that moment of the search"
                )
            break
        records.append(record)
        place += size
    return records, place


def _record(data: bytes, place: int) -> tuple[Record | None, int]:
    head = data[place : place + HEAD]
    try:
        length, checksum = int(head[:8], 16), int(head[9:17], 16)
    except ValueError:
        return None, 0
    text = data[place + HEAD : place + HEAD + length]
    end = data[place + HEAD + length : place + HEAD + length + 1]
    if len(head) < HEAD or len(text) < length or end != b"\n" or zlib.crc32(text) != checksum:
        return None, 0
    record: Record = json.loads(text)
    return record, HEAD + length + 1


def _whole_record_after(data: bytes, place: int) -> bool:
    at = data.find(b"\n", place)
    while at >= 0:
        if _record(data, at + 1)[0] is not None:
            return True
        at = data.find(b"\n", at + 1)
    return False
