"""The lines of `record.approaches`, the table of approaches side by side: which of them are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def compared(line: Mapping[str, Any]) -> bool:
    """Say whether a line's N* is compared with the others': not with a note, which says what else it is the size of.

    Such a note is that losses were taken before the schedules ended.
    """
    return not line.get("note")
