"""What a plan answers, to people and to scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What a plan says: as text, as fields of JSON. refusal: one line where the answer is no.

    code: the exit code where it is not: 130 if Ctrl-C ended it, and this is what there was until then; 1 if something
    that was run failed.
    """

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    code: int = 0
