"""Bad ends of attempts as the ledger's events say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from study.failures.kinds import Kind
from study.failures.retry_policy import Action, RecordedFailure


def end_fields(end: RecordedFailure) -> dict[str, Any]:
    """Return an end as the fields of its event, `ended`."""
    said = {"name": end.batch, "key": end.key, "attempt": end.attempt, "kind": end.kind, "nodes": list(end.nodes)}
    return {**said, "action": end.action, "why": end.why, "memory_gb": end.memory_gb, "saved": end.saved}


def end_of(event: Mapping[str, Any]) -> RecordedFailure:
    """Return the end that an event stands for."""
    return RecordedFailure(
        key=str(event["key"]),
        batch=str(event["name"]),
        attempt=int(event["attempt"]),
        kind=Kind(event["kind"]),
        nodes=tuple(event.get("nodes") or ()),
        time=float(event["time"]),
        action=Action(event.get("action") or "stop"),
        why=event.get("why") or "",
        memory_gb=event.get("memory_gb"),
        saved=int(event.get("saved") or 0),
    )
