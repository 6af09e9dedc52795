"""What a run wrote down (metrics.jsonl), by the path that it took.

A rollback begins a new path: its record has the path's number and, as `to_step`, how far the run went back; what paths
before it have of later steps is abandoned. Records without a number are of the first path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROLLBACK = "rollback"
EVENTS = ("spike", ROLLBACK)
"""Kinds of records that say why a path was left: they stay, whatever becomes of their path."""
Record = Mapping[str, Any]


def read(path: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the records of a file on the path that the run took, of these kinds or of all, in the order written.

    Lines that are torn or no records are left out; no file has none.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    wanted = tuple(f'"{kind}"' for kind in (*kinds, ROLLBACK)) if kinds else ()
    found = []
    for line in lines:
        # Most lines are of training: reading them as JSON would take most of the time.
        if wanted and not any(word in line for word in wanted):
            continue
        try:
            record = json.loads(line)
            if isinstance(record["kind"], str) and isinstance(record["metrics"], dict):
                abandoned(record, goings_back([record]))  # its numbers are some
                found.append(record)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return [record for record in taken(found) if not kinds or record["kind"] in kinds]


def taken(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that are not of an abandoned path, and all events."""
    rollbacks = goings_back(records)
    return [record for record in records if record["kind"] in EVENTS or not abandoned(record, rollbacks)]


def goings_back(records: Iterable[Record]) -> list[tuple[int, int]]:
    """Return the rollbacks among the records: the path that each began, and to which step it went back."""
    found = []
    for record in records:
        number = path_of(record)
        if record["kind"] != ROLLBACK or not number:  # those of earlier versions have no number, and began no path
            continue
        to_step = record["metrics"].get("to_step")
        found += [] if to_step is None else [(number, int(to_step))]
    return found


def path_of(record: Record) -> int:
    """Return the number of the path that a record belongs to; 0 for the first."""
    return int(record.get("path") or 0)


def abandoned(record: Record, rollbacks: Iterable[tuple[int, int]]) -> bool:
    """Say whether a record is of steps that a later rollback (path begun, step) went back to before."""
    step = int(record.get("step") or 0)
    return any(number > path_of(record) and step > to_step for number, to_step in rollbacks)
