"""Reading what is new in a run's `metrics.jsonl`: whole lines only, each step of each kind once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

CHUNK = 1 << 20
END_BYTES = 40
"""So many of the last bytes read are remembered: of a record they are numbers that another one would not repeat."""
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


class Value(NamedTuple):
    """One value of one metric: its name, the value, unix milliseconds, the step."""

    name: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Position:
    """How far a spool has been read: bytes, the last step of each kind, and the last bytes, to know the file by."""

    offset: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    end: str = ""


class Record(NamedTuple):
    """The values of one line (none if it says nothing new), the position after it, and whether it was readable."""

    values: list[Value]
    position: Position
    readable: bool


def records(path: Path, start: Position, chunk: int = CHUNK) -> Iterator[Record]:
    """Yield the records behind `start`, lazily, `chunk` bytes at a time.

    A last line without its newline is left for later. A file that has become shorter, or another one than was read
    (a node that crashed lost the end of it, and its run wrote it again), is read from its beginning, and steps that
    were read before are not yielded a second time.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = start if _is_same(file, start) else Position(0, start.steps)
        file.seek(position.offset)
        rest = b""
        while data := file.read(chunk):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                record = _record(line, position)
                position = record.position
                yield record


def _is_same(file: BinaryIO, start: Position) -> bool:
    """Whether the file still holds, where the reading stopped, what was read last."""
    if os.fstat(file.fileno()).st_size < start.offset:
        return False
    end = start.end.encode("latin-1")
    file.seek(start.offset - len(end))
    return file.read(len(end)) == end


def _record(line: bytes, before: Position) -> Record:
    offset, end = before.offset + len(line) + 1, (line + b"\n")[-END_BYTES:].decode("latin-1")
    try:
        entry = json.loads(line)
        values, kind, step = _values(entry, before.steps)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Record([], Position(offset, before.steps, end), False)
    if step <= before.steps.get(kind, -1):
        return Record([], Position(offset, before.steps, end), True)
    return Record(values, Position(offset, {**before.steps, kind: step}, end), True)


def _values(entry: Mapping[str, Any], steps: Mapping[str, int]) -> tuple[list[Value], str, int]:
    """Return the values of one entry, its kind and its step; `tokens` comes with the first record of a step."""
    kind, step, stamp = str(entry["kind"]), int(entry["step"]), round(float(entry["time"]) * 1000)
    prefix = kind + "_"
    values = [
        Value(_FORBIDDEN.sub("_", prefix + name), float(value), stamp, step)
        for name, value in entry["metrics"].items()
        if value is not None
    ]
    if "tokens" in entry and step > max(steps.values(), default=-1):
        values.append(Value("tokens", float(entry["tokens"]), stamp, step))
    return values, kind, step
