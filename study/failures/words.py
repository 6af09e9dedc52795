"""What an attempt that failed left in words, and how it is told in few lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.failures.kinds import headline

_RANK = re.compile(r"^\[?rank ?\d+\]?:\s?")


@dataclass(frozen=True)
class Words:
    """The line that says most of an error, and the error's last lines, both of the rank that caused the failure."""

    headline: str = ""
    lines: tuple[str, ...] = ()
    rank: int = 0

    @classmethod
    def of_end(cls, ended: Mapping[str, Any] | None) -> Words:
        """Return what the record of an attempt's end says; nothing where it says nothing."""
        error = (ended or {}).get("error") or ()
        lines = error.splitlines() if isinstance(error, str) else map(str, error)  # a list in earlier versions
        said, rank = str((ended or {}).get("headline") or ""), int((ended or {}).get("rank") or 0)
        return cls.of_lines([line for line in lines if line.strip()], said, rank)

    @classmethod
    def of_lines(cls, lines: Sequence[str], said: str = "", rank: int = 0) -> Words:
        """Return the words of an error's last lines; `said`: the line that says most, where that is known."""
        return cls(said or headline("\n".join(lines)), tuple(lines), rank)

    def told(self, most: int | None = None) -> list[str]:
        """Return the line that says most, then the error's last lines without it; `most` lines in all, None: all."""
        if not self.headline:
            return list(self.lines if most is None else self.lines[-most:])
        rest = [line for line in self.lines if line.strip() != self.headline]
        if rest and _bare(rest[-1]) == _bare(self.headline):
            rest.pop()
        return [self.headline, *(rest if most is None else rest[max(0, len(rest) - most + 1) :])]


def _bare(line: str) -> str:
    """Return a line without the rank that it is of."""
    return _RANK.sub("", line).strip()
