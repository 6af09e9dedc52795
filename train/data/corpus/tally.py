"""What was left out: all of it counted, the first of it by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from train.spec.manifest import Skipped

LISTED = 100


class Tally:
    """Documents that are not in the corpus: how many for which reason, and the first of them by name.

    It keeps `LISTED` names, of any number of documents.
    """

    def __init__(self, counts: Iterable[tuple[str, int]] = (), first: Iterable[Skipped] = ()) -> None:
        self.counts = Counter(dict(counts))
        self._kept = list(first)

    @property
    def total(self) -> int:
        """How many documents there are."""
        return self.counts.total()

    @property
    def first(self) -> list[Skipped]:
        """The first documents by name, those of one name in the order in which they came."""
        return sorted(self._kept, key=lambda one: one.file)[:LISTED]

    def add(self, file: str, why: str) -> None:
        """Count a document."""
        self.counts[why] += 1
        self._keep([Skipped(file, why)])

    def add_all(self, other: Tally) -> None:
        """Count those of another tally."""
        self.counts.update(other.counts)
        self._keep(other.first)

    def plain(self) -> dict[str, Any]:
        """Return the tally as JSON holds it."""
        return {"counts": dict(self.counts), "first": [(one.file, one.why) for one in self.first]}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Tally:
        """Return the tally of what `plain` returned."""
        return cls(plain["counts"].items(), (Skipped(file, why) for file, why in plain["first"]))

    def _keep(self, more: list[Skipped]) -> None:
        self._kept += more
        if len(self._kept) > 4 * LISTED:
            self._kept = self.first
