"""What approach 2 counts: sizes near the best one of a budget, or all of them; flat valleys, or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.text import commandline, numbers
from analysis.text.commandline import Key

WINDOW = 8.0
"""Wide enough for the noise of runs, narrow enough for a parabola: on exact Chinchilla surfaces D* at 1e24 FLOPs is
0.4, 1.4, 3.0 and 5.0 % too low in windows of 2, 4, 8 and 16, and 7.6 % over sizes to 32 times the best."""


@dataclass(frozen=True)
class Choices:
    """Sizes within a factor of `window` of a budget's best one are in its parabola; `flat` valleys, "drop" or "keep".

    A window of infinity takes all sizes. A valley is flat where it is less deep than twice the runs' noise.
    """

    window: float = WINDOW
    flat: str = "drop"


def window(key: Key, text: str) -> str:
    """Read a factor of at least 2, or all."""
    if text != "all" and commandline.number(key, text) < 2.0:
        raise ValueError(f"{key.name}={text}: a factor of at least 2, or all, is needed ({key.help})")
    return text


KEYS = (
    Key("valley_window", "approach 2: sizes within this factor of a budget's best one; all: every size", "8", window),
    Key("flat_valleys", "approach 2: valleys shallower than twice the runs' noise", "drop", choices=("drop", "keep")),
)


def of(asked: Mapping[str, Any]) -> Choices:
    """Return what the options of the command say."""
    said = str(asked.get("valley_window", WINDOW))
    return Choices(math.inf if said == "all" else numbers.read(said), str(asked.get("flat_valleys", "drop")))
