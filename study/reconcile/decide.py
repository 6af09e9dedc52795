"""What to do about the difference between what is wanted and what is known. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study.executors import detached
from study.executors.jobs import Lookup, LookupAnswer
from study.records.ledger import Batch, Ledger
from study.status.states import RESUMABLE, PointState

WINDOW_SECONDS = 10.0
"""How long after its intent a submission that the scheduler does not know yet may still arrive [s]."""


@dataclass(frozen=True)
class Confirm:
    """Write down that a batch was submitted after all."""

    name: str
    job_id: str


@dataclass(frozen=True)
class Abandon:
    """Give a batch up: it never reached the scheduler. Should it still arrive, its jobs find that it is not wanted."""

    name: str
    why: str


@dataclass(frozen=True)
class Leave:
    """Touch nothing of a batch, and say why."""

    name: str
    why: str


@dataclass(frozen=True)
class Submit:
    """Submit these keys."""

    keys: tuple[str, ...]


Action = Confirm | Abandon | Leave | Submit


def decide(
    wanted: Sequence[str], known: Ledger, states: Mapping[str, str], lookups: Mapping[str, Lookup], now: float
) -> list[Action]:
    """Return what to do, in order.

    `states` are the points' states as judged from evidence (missing: never seen), `lookups` what the scheduler said of
    the names of ambiguous batches. A key in a live batch is never submitted again, and a batch is only given up when
    the scheduler answered that it does not know its name, a while after the intent.
    """
    actions: list[Action] = [
        _resolve(batch, lookups.get(batch.name), now) for batch in known.batches.values() if batch.ambiguous
    ]
    abandoned = {action.name for action in actions if isinstance(action, Abandon)}
    keys = [key for key in dict.fromkeys(wanted) if _is_due(key, known, states.get(key, PointState.PENDING), abandoned)]
    if keys:
        actions.append(Submit(tuple(keys)))
    return actions


def _resolve(batch: Batch, lookup: Lookup | None, now: float) -> Confirm | Abandon | Leave:
    if not detached(batch):  # it was submitted by being written down
        return Confirm(batch.name, batch.executor)
    if lookup is None or lookup.answer == LookupAnswer.UNANSWERED:
        why = lookup.why if lookup is not None else "the scheduler was not asked"
        return Leave(batch.name, f"it is not known whether it was submitted ({why})")
    if lookup.answer == LookupAnswer.FOUND:
        assert lookup.job_id is not None
        return Confirm(batch.name, lookup.job_id)
    age = now - batch.time
    if age < WINDOW_SECONDS:
        return Leave(batch.name, f"it was meant to be submitted {age:.0f} s ago and may still be on its way")
    return Abandon(batch.name, "the scheduler does not know its name")


def _is_due(key: str, known: Ledger, state: str, abandoned: set[str]) -> bool:
    if key in known.cancelled:
        return False
    name = known.current.get(key)
    if key in known.elsewhere:
        return state == PointState.PENDING or state in RESUMABLE
    if name is None or name in abandoned:
        return state not in (PointState.COMPLETED, PointState.DIVERGED, PointState.RUNNING)
    return state in RESUMABLE and not known.batches[name].ambiguous
