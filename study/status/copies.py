"""What is said of a study that is a copy of another one, whose jobs are not its own (study.records.origin)."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from study.records.ledger import Ledger
from study.status.states import PointState, PointStatus
from study.text import WIDTH, counted


def is_copied(status: PointStatus) -> bool:
    """Whether a point has not ended and is in a job of the study that this one is a copy of."""
    return status.state == PointState.PENDING and status.elsewhere is not None


def lines(statuses: Sequence[PointStatus]) -> list[str]:
    """Return how many points are in jobs of another study, and that nothing reaches these; none where none is."""
    places = Counter(status.elsewhere for status in statuses if is_copied(status))
    return [line for place, count in places.items() for line in _told(counted(count, "point"), str(place))]


def search_lines(known: Ledger, called: str) -> list[str]:
    """Return the same of a search, with what continues it here; `called` names it."""
    if known.copy_of is None:
        return []
    again = f"to continue it here as well, give its command with study.name={called}"
    return [*_told("the search", known.copy_of), again]


def _told(whose: str, place: str) -> list[str]:
    said = f"a copy: the jobs of {whose} belong to the study at {place}; nothing that is done here reaches them"
    return textwrap.wrap(said, WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
