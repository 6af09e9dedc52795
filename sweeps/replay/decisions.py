"""Re-applying a recorded history: is each decision the scheduler's, and would it be so without lost units?"""

from __future__ import annotations

from collections.abc import Iterable

from sweeps.history import Ended, Event, Started, Unit
from sweeps.schedulers.base import Scheduler


def decisions(scheduler: Scheduler, events: Iterable[Event]) -> int:
    """Apply a history to a scheduler without any; return how many units it handed out.

    ValueError at the first one that is not what the scheduler wants most by the events before it.
    """
    count = 0
    for event in events:
        if isinstance(event, Started):
            wanted = scheduler.decide()
            if wanted is None or _identity(wanted) != _identity(event.unit):
                raise ValueError(f"unit {count}: {event.unit} was handed out, by the events before it {wanted} is due")
            count += 1
        scheduler.apply(event)
    return count


def undisturbed(events: Iterable[Event]) -> list[Event]:
    """Return a history as if no unit had been lost: each is handed out once, and its report comes when it came."""
    lost: set[int] = set()
    kept: list[Event] = []
    for event in events:
        match event:
            case Ended(trial, "lost"):
                lost.add(trial)
            case Started(unit) if unit.trial in lost:
                lost.remove(unit.trial)
            case _:
                kept.append(event)
    return kept


def _identity(unit: Unit) -> tuple[object, ...]:
    """Return what a scheduler decides of a unit: the settings of a new trial are the sampler's."""
    config = None if unit.config is None or unit.parent is None else dict(unit.config)
    return unit.trial, unit.until, unit.bracket, unit.probe, unit.parent, config
