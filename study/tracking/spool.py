"""Reading what is new in a run's `metrics.jsonl`: whole lines only, each step of each kind once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 1 << 20
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


class Value(NamedTuple):
    """One value of one metric: its name, the value, unix milliseconds, the step."""

    name: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Position:
    """How far a spool has been read: bytes, and the last step of each kind."""

    offset: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)


class Record(NamedTuple):
    """The values of one line (none if it says nothing new), the position after it, and whether it was readable."""

    values: list[Value]
    position: Position
    readable: bool


def records(path: Path, start: Position, chunk: int = CHUNK) -> Iterator[Record]:
    """Yield the records behind `start`, lazily, `chunk` bytes at a time.

    A last line without its newline is left for later. A file that has become shorter is read from its beginning, and
    steps that were read before are not yielded a second time.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = start if os.fstat(file.fileno()).st_size >= start.offset else Position(0, start.steps)
        file.seek(position.offset)
        rest = b""
        while data := file.read(chunk):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                record = _record(line, position)
                position = record.position
                yield record


def _record(line: bytes, before: Position) -> Record:
    offset = before.offset + len(line) + 1
    try:
        entry = json.loads(line)
        values, kind, step = _values(entry, before.steps)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Record([], Position(offset, before.steps), False)
    if step <= before.steps.get(kind, -1):
        return Record([], Position(offset, before.steps), True)
    return Record(values, Position(offset, {**before.steps, kind: step}), True)


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
