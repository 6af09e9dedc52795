"""Records of another form: what may stand in the place of a value, and in which places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

PER_FILE = 6
"""Of all wrong values of a file so many are taken, by a seed, where every one of them would take minutes."""
GONE = object()
WRONG: tuple[Any, ...] = (
    3, -1.5, "x", "NaN", float("nan"), float("inf"), [], [1], {}, {"a": []}, None, True, 10**400, GONE
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something may be wrong: the record itself, its fields or entries, and theirs."""
    yield at
    if isinstance(value, dict | list) and len(at) < 3:
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[name], (*at, name))


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """Return a record with something else in a place of it."""
    if not at:
        return new
    changed = value.copy()
    if new is GONE and len(at) == 1:
        del changed[at[0]]
    else:
        changed[at[0]] = put(changed[at[0]], at[1:], new)
    return changed


def spoilt(record: Any, seed: str, count: int = PER_FILE) -> list[Any]:
    """Return wrong forms of a record, a list in its place among them."""
    every = [(at, new) for at in places(record) for new in WRONG if at or new is not GONE]
    return [[record], *(put(record, at, new) for at, new in random.Random(seed).sample(every, min(count, len(every))))]
