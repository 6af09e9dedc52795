"""Which run a run goes on from: `schedule.parent` as `<key>@<tokens>`, another run of the same study."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOTATION = re.compile(r"(?P<key>[0-9a-f]{12})@(?P<tokens>\d+)")


@dataclass(frozen=True)
class Parent:
    """The run with this key, where it had seen this many tokens."""

    key: str
    tokens: int

    def __str__(self) -> str:
        return f"{self.key}@{self.tokens}"


def parse(text: str | None) -> Parent | None:
    """Return the parent that `schedule.parent` names by its key; None for no parent, and for a folder."""
    found = _NOTATION.fullmatch(text or "")
    return None if found is None else Parent(found["key"], int(found["tokens"]))
