"""What was wanted and what was submitted: an append-only file of events, and the state that they add up to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from study.files import end_of_whole_lines, locked
from study.layout import StudyFolder
from study.policy import End

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """One submission: a job array of SLURM, or a list of local runs. A key's place in `keys` is its array index."""

    name: str
    executor: str
    keys: tuple[str, ...]
    time: float
    resources: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    job_id: str | None = None
    abandoned: str | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether it was meant to be submitted and nobody wrote down whether it was."""
        return self.job_id is None and self.abandoned is None


@dataclass(frozen=True)
class Ledger:
    """The state that a ledger's events add up to.

    ends: bad ends of each point since somebody last asked to try it again; history: all there ever were. excluded:
    nodes that the latest submission left out, with why.
    """

    batches: Mapping[str, Batch] = field(default_factory=dict)
    current: Mapping[str, str] = field(default_factory=dict)
    cancelled: frozenset[str] = frozenset()
    ends: Mapping[str, tuple[End, ...]] = field(default_factory=dict)
    history: tuple[End, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)

    def batch(self, key: str) -> Batch | None:
        """Return the batch that a key belongs to now; None where it was never submitted or is to be tried anew."""
        name = self.current.get(key)
        return None if name is None else self.batches[name]


def fold(events: Iterable[Event]) -> Ledger:
    """Return the state after these events. Pure; events of a later version are passed over."""
    batches: dict[str, Batch] = {}
    current: dict[str, str] = {}
    cancelled: set[str] = set()
    ends: dict[str, list[End]] = {}
    history: dict[tuple[str, str, int], End] = {}
    excluded: Mapping[str, str] = {}
    for event in events:
        kind, name = event["event"], event.get("name", "")
        if kind == "intent":
            batches[name] = _batch(event)
            current.update(dict.fromkeys(event["keys"], name))
            cancelled.difference_update(event["keys"])
        elif kind == "submitted" and name in batches:
            batches[name] = replace(batches[name], job_id=str(event["job_id"]))
        elif kind == "abandoned" and name in batches:
            batches[name] = replace(batches[name], abandoned=str(event["why"]))
            for key in batches[name].keys:
                if current.get(key) == name:
                    del current[key]
        elif kind == "cancelled":
            cancelled.update(event["keys"])
        elif kind == "retry":
            cancelled.difference_update(event["keys"])
            for key in event["keys"]:
                current.pop(key, None)
                ends.pop(key, None)
        elif kind == "ended":
            end = _end(event)
            others = [e for e in ends.get(end.key, ()) if e.of != end.of]
            ends[end.key] = [*others, end]
            history[end.key, *end.of] = end
        elif kind == "excluded":
            excluded = event["nodes"]
    kept = {key: tuple(its) for key, its in ends.items()}
    return Ledger(batches, current, frozenset(cancelled), kept, tuple(history.values()), excluded)


def read(folder: StudyFolder) -> Ledger:
    """Return the state of a study's ledger; the empty state where there is none yet."""
    return fold(read_events(folder.ledger))


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a ledger file, without a last line that a killed writer left unfinished.

    Raises ValueError, naming the line, where any other line is not an event.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    events = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            event = json.loads(line)
            event["event"], event["time"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}:{number}: {line[:60]!r} is not an event; the file was edited or damaged: restore it from "
                "a backup, or remove that line"
            ) from error
        events.append(event)
    return events


def append(folder: StudyFolder, event: str, now: float | None = None, **fields: Any) -> None:
    """Append one event durably: under the lock, after cutting off an unfinished last line, with an fsync."""
    entry = {"time": round(time.time() if now is None else now, 3), "event": event, **fields}
    line = (json.dumps(entry, separators=(",", ":")) + "\n").encode()
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.lock):
        descriptor = os.open(folder.ledger, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            end = end_of_whole_lines(descriptor)
            os.ftruncate(descriptor, end)
            os.pwrite(descriptor, line, end)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def end_fields(end: End) -> dict[str, Any]:
    """Return an end as the fields of its event, `ended`."""
    said = {"name": end.batch, "key": end.key, "attempt": end.attempt, "kind": end.kind, "nodes": list(end.nodes)}
    return {**said, "action": end.action, "why": end.why, "memory_gb": end.memory_gb}


def _end(event: Event) -> End:
    return End(
        key=str(event["key"]),
        batch=str(event["name"]),
        attempt=int(event["attempt"]),
        kind=str(event["kind"]),
        nodes=tuple(event.get("nodes") or ()),
        time=float(event["time"]),
        action=str(event.get("action", "stop")),
        why=str(event.get("why", "")),
        memory_gb=event.get("memory_gb"),
    )


def _batch(event: Event) -> Batch:
    return Batch(
        name=str(event["name"]),
        executor=str(event["executor"]),
        keys=tuple(event["keys"]),
        time=float(event["time"]),
        resources=event.get("resources") or {},
        code=event.get("code"),
    )
