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


def end_of(record: Mapping[str, Any], key: str) -> RecordedFailure | None:
    """Return a unit's failure as the log has it; None where its end counts as none.

    Records of an earlier version name no kind: there a worker that was lost with its unit is `silent`.
    """
    kind = Kind(record.get("kind", ""))
    if not kind and record.get("silent"):
        why = str(record.get("why", ""))
        kind = Kind(why) if why and why == Kind(why) else GONE
    if not is_counted(kind):
        return None
    return RecordedFailure(
        key, "", int(record["claim"]), kind, time=float(record["time"]), saved=int(record.get("saved", 0))
    )
