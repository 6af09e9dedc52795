"""Failures of a search's units, read from its log and from SLURM. Pure; retry_policy decides what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from study.failures.kinds import Kind, by_slurm
from study.failures.retry_policy import RecordedFailure, is_counted

GONE = Kind.NODE_FAILURE
"""Kind of failure of a worker whose lease expired: it died with its node, or was killed there."""


def by_job(word: str) -> Kind:
    """Return the kind of end of a worker's job by SLURM's word for it."""
    kind = by_slurm(word)
    return GONE if kind is None or kind == Kind.NO_OUTCOME else kind


def how_lost(record: Mapping[str, Any]) -> str:
    """Return in a few words how a unit ended that has no result."""
    kind = _kind(record)
    if record.get("limited"):
        return "used up the device time that was set aside"
    if kind == GONE:
        return "lost with their workers"
    return kind or str(record.get("why", "")) or "no reason recorded"


def end_of(record: Mapping[str, Any], key: str) -> RecordedFailure | None:
    """Return a unit's failure as the log has it; None where its end counts as none."""
    kind = _kind(record)
    if not is_counted(kind):
        return None
    return RecordedFailure(
        key, "", int(record["claim"]), kind, time=float(record["time"]), saved=int(record.get("saved", 0))
    )


def _kind(record: Mapping[str, Any]) -> Kind:
    """Return the kind of an end. Earlier versions named none: there a worker lost with its unit is `silent`."""
    kind = Kind(record.get("kind", ""))
    if kind or not record.get("silent"):
        return kind
    why = str(record.get("why", ""))
    return Kind(why) if why and why == Kind(why) else GONE
