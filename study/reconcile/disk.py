"""Why nothing is submitted or started: the disk of a study is full, or was, and nobody has said that there is room."""

from __future__ import annotations

from study.failures.kinds import FAILURES
from study.failures.retry_policy import Action
from study.records.ledger import Ledger
from study.records.point import Point
from study.storage import room_taken
from study.storage.layout import StudyFolder
from study.storage.room import LEAST_BYTES, free_bytes, is_full

CHECKPOINT_BYTES = 16
"""Of a parameter, at most: its weight and three states of the optimizer in float32."""
CHECKPOINTS = 2
"""A run that saves has the one before as well."""


def was_full(folder: StudyFolder, state: Ledger) -> str:
    """Return why nothing more goes out: a point ended on a full disk and was not tried again; "" where none did."""
    for key, ends in state.ends.items():
        last = ends[-1] if ends else None
        if last is None or not (FAILURES[last.kind].every_run and last.action == Action.STOP):
            continue
        if key not in state.waiting and key not in state.cancelled and state.current.get(key) == last.batch:
            from study.records.settings import reference  # loads the schema, which jobs that begin do without

            return f"the disk was full when {key} ended: make room, then python -m study retry {reference(folder)}"
    return ""


def no_room(folder: StudyFolder, state: Ledger) -> str:
    """Return why nothing is submitted now; "" where something may be."""
    if why := was_full(folder, state):
        return why
    return f"no space left in {folder.path}: make room" if is_full(folder.path) else ""


def too_full_for(point: Point, folder: StudyFolder, state: Ledger) -> str:
    """Return why a point would be trained in vain now; "" where it may not be.

    How much room its checkpoints take is only estimated: less stops nothing before another point ended for want of it.
    """
    if is_full(folder.path):
        return no_room(folder, state)
    why = was_full(folder, state)
    return why if why and is_full(folder.path, LEAST_BYTES + needed_for(point)) else ""


def needed_for(point: Point) -> int:
    """Return how many bytes a point's checkpoints may take, by estimate."""
    return CHECKPOINTS * CHECKPOINT_BYTES * point.params


def take_room(folder: StudyFolder, point: Point, state: Ledger) -> str:
    """Take room for a point's checkpoints; return why it is not to be started now, "" where it is."""
    return too_full_for(point, folder, state) or room_taken.take(folder, point.key, needed_for(point))


def held_back(folder: StudyFolder, state: Ledger) -> dict[str, str]:
    """Return which waiting points are to wait on for the room that others have taken, and why.

    These found none as they began. As many go out as fit, and one where nothing runs.
    """
    wanting = {key: asked.needs for key, asked in state.waiting.items() if asked.needs is not None}
    if not wanting:
        return {}
    beside, ahead, held = room_taken.left_beside(folder, ""), 0, dict[str, str]()
    free = free_bytes(folder.path) if beside is None else beside
    for key, needs in wanting.items():
        alone = beside is None and not ahead
        if alone or free is None or ahead + needs + LEAST_BYTES <= free:
            ahead += needs
        else:
            held[key] = state.waiting[key].why
    return held
