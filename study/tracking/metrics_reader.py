"""Reading what is new in a run's `metrics.jsonl`: whole lines only, each step of each kind once, of the path taken.

After a rollback a run takes steps again (analysis.inputs.recorded). What is known to be of an abandoned path when it is
read is passed over; what was read before the rollback was written has been sent, and stays in the store.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from analysis.inputs import recorded
from study.records.metric_names import LOG_FLOPS, TOKENS, metric_name

CHUNK = 1 << 20
END_BYTES = 40
"""So many of the last bytes read are remembered: of a record they are numbers that another one would not repeat."""
MOST = 2**63 - 1
"""The largest step or time that MLflow's stores keep."""
_ROLLBACK = b'"rollback"'
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class Value(NamedTuple):
    """One value of one metric: its name, the value, unix milliseconds, the step."""

    name: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True)
class Position:
    """How far a spool has been read: bytes, the last step of each kind, and the last bytes, to know the file by.

    path: number of the path that the steps are of.
    """

    offset: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    end: str = ""
    path: int = 0


class Record(NamedTuple):
    """The values of one line (none if it says nothing new), the position after it, and whether it was readable."""

    values: list[Value]
    position: Position
    readable: bool


def records(path: Path, start: Position, chunk: int = CHUNK, flops_per_token: float = 0.0) -> Iterator[Record]:
    """Yield the records behind `start`, lazily, `chunk` bytes at a time.

    A validation also says, as a logarithm, how many FLOPs the run had come to, by `flops_per_token`.

    A last line without its newline is left for later. A file that has become shorter, or another one than was read
    (a node that crashed lost the end of it, and its run wrote it again), is read from its beginning, and steps that
    were read before are not yielded a second time.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = start if _is_same(file, start) else Position(0, start.steps, path=start.path)
        rollbacks = _rollbacks(file, position.offset)
        file.seek(position.offset)
        rest = b""
        while data := file.read(chunk):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                record = _record(line, position, rollbacks, flops_per_token)
                position = record.position
                yield record


def _is_same(file: BinaryIO, start: Position) -> bool:
    """Whether the file still holds, where the reading stopped, what was read last."""
    if os.fstat(file.fileno()).st_size < start.offset:
        return False
    end = start.end.encode("latin-1")
    file.seek(start.offset - len(end))
    return file.read(len(end)) == end


def _rollbacks(file: BinaryIO, offset: int) -> list[tuple[int, int]]:
    """Return the rollbacks behind `offset`: the path that each began, and to which step it went back."""
    file.seek(offset)
    return [back for _, began in _goings_back(file) for back in began]


def beginnings(path: Path) -> dict[int, int]:
    """Return the paths that rollbacks began, in the order written, and the step after which each run went back."""
    found: dict[int, int] = {}
    with path.open("rb") as file:
        for entry, began in _goings_back(file):
            with contextlib.suppress(*_UNREADABLE):
                step = int(entry["step"])
                for number, _ in began:
                    found.setdefault(number, step)
    return found


def _goings_back(file: BinaryIO) -> Iterator[tuple[Mapping[str, Any], list[tuple[int, int]]]]:
    """Yield every record of a rollback from where the file stands, with the paths it began and where they went back."""
    for line in file:
        if _ROLLBACK in line and line.endswith(b"\n"):
            try:
                entry = json.loads(line)
                began = recorded.goings_back([entry])
            except _UNREADABLE:
                continue
            yield entry, began


def _record(line: bytes, before: Position, rollbacks: Sequence[tuple[int, int]], per_token: float) -> Record:
    offset, end = before.offset + len(line) + 1, (line + b"\n")[-END_BYTES:].decode("latin-1")
    passed = Position(offset, before.steps, end, before.path)  # replace() would be a tenth of all that reading takes
    try:
        entry = json.loads(line)
        path, kind, step = recorded.path_of(entry), str(entry["kind"]), _storable(int(entry["step"]))
        values = _values(entry, kind, step)
        begun = recorded.goings_back([entry])
        if path < before.path or (path == before.path and (begun or step <= before.steps.get(kind, -1))):
            return Record([], passed, True)
        if path > before.path:  # steps behind where it went back to come again, and are new
            first = begun[0][1] if begun else step - 1
            passed = replace(passed, steps={name: min(at, first) for name, at in before.steps.items()}, path=path)
        if begun:
            return Record(values, passed, True)
        left = recorded.abandoned(entry, rollbacks)
        if left and kind not in recorded.EVENTS:
            return Record([], passed, True)
        first_of_step = step > max(passed.steps.values(), default=-1)
        if "tokens" in entry and first_of_step and not left:
            values.append(Value(TOKENS, float(entry["tokens"]), _stamp(entry), step))
        if kind == "validation" and (flops := per_token * entry.get("tokens", 0)) > 0:
            values.append(Value(LOG_FLOPS, math.log10(flops), _stamp(entry), step))
    except _UNREADABLE:
        return Record([], passed, False)
    return Record(values, Position(offset, {**passed.steps, kind: step}, end, passed.path), True)


def _values(entry: Mapping[str, Any], kind: str, step: int) -> list[Value]:
    """Return the values of one entry's metrics."""
    stamp = _stamp(entry)
    return [
        Value(metric_name(kind, name), float(value), stamp, step)
        for name, value in entry["metrics"].items()
        if value is not None
    ]


def _stamp(entry: Mapping[str, Any]) -> int:
    return _storable(round(float(entry["time"]) * 1000))


def _storable(number: int) -> int:
    """Return a number that a store keeps in 64 bits; OverflowError for another, which stops no run's values."""
    if abs(number) > MOST:
        raise OverflowError(number)
    return number
