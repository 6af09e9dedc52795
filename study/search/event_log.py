"""The search's event log: an append-only log of which every record has its length and checksum.

A record is one line: length of the JSON in bytes (8 hex digits), CRC-32 of it (8 hex digits), the JSON, a newline. A
torn end is what does not check. Damage before the end is not repaired but named: there history is missing.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from study.storage.jsonl import Log, compact

Record = dict[str, Any]
HEAD = 18
"""Bytes before the JSON: two numbers of eight hex digits, a space after each."""


class EventLog(Log[Record]):
    """One process's view of a search's log. Call `read` before `append`, under the same lock.

    TimeoutError where whole records have come in between: then this process has lost its lock without noticing.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, json.loads, compact, "an event", "restore it from a backup")

    def follow(self, apply: Callable[[Record], None]) -> Iterator[Record]:
        """Read what came, apply each record, and yield it then. ValueError, naming it, where it is none of a search."""
        for record in self.read():
            try:
                apply(record)
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
                raise ValueError(
                    f"{self.path}: {str(record)[:60]!r} is not an event of this search ({type(error).__name__}: "
                    f"{error}): the file was edited or damaged; restore it from a backup"
                ) from error
            yield record

    def parse(self, data: bytes) -> tuple[list[Record], int]:
        """Return the whole records at the beginning of `data`, which begins at `end`, and their length [bytes].

        ValueError where a record that does not check is followed by one that does: that is damage, not a torn append.
        """
        records: list[Record] = []
        at = 0
        while at < len(data):
            record, size = _record(data, at)
            if record is None:
                if _whole_record_after(data, at):
                    raise ValueError(
                        f"{self.path}: the record at byte {self.end + at} is damaged and others follow it: restore the "
                        "file from a backup, or cut it there to go on from that moment of the search"
                    )
                break
            records.append(record)
            at += size
        return records, at

    def encode(self, record: Record) -> bytes:
        """Return a record as its line."""
        text = compact(record).encode()
        return b"%08x %08x %s\n" % (len(text), zlib.crc32(text), text)

    def whole_end(self, descriptor: int) -> int:
        """Return the offset behind the last whole record, which has been read."""
        more = os.fstat(descriptor).st_size - self.end
        if more < 0 or (more and self.parse(os.pread(descriptor, more, self.end))[0]):
            raise TimeoutError(
                f"{self.path}: another process has appended to it: this one lost its lock while it was suspended"
            )
        return self.end


def _record(data: bytes, at: int) -> tuple[Record | None, int]:
    """Return the record that begins at a byte of `data`, and its length [bytes]; None where none does that checks."""
    head = data[at : at + HEAD]
    try:
        length, checksum = int(head[:8], 16), int(head[9:17], 16)
    except ValueError:
        return None, 0
    text = data[at + HEAD : at + HEAD + length]
    end = data[at + HEAD + length : at + HEAD + length + 1]
    if len(head) < HEAD or len(text) < length or end != b"\n" or zlib.crc32(text) != checksum:
        return None, 0
    try:
        record: Record = json.loads(text)
    except (ValueError, RecursionError):
        return None, 0
    return record, HEAD + length + 1


def _whole_record_after(data: bytes, at: int) -> bool:
    at = data.find(b"\n", at)
    while at >= 0:
        if _record(data, at + 1)[0] is not None:
            return True
        at = data.find(b"\n", at + 1)
    return False
