"""The compute-optimal run of each budget as page, terminal and MLflow show it, from the content of fit.json alone.

Standard library only: the terminal's lines are printed without numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.text import numbers

QUANTITIES: Mapping[str, Callable[[object], str]] = {
    "params": numbers.amount,
    "tokens": numbers.amount,
    "tokens_per_param": lambda value: numbers.number(value, 2),
    "loss": lambda value: numbers.number(value, 4),
}
"""What the table says of a budget, and how each number is shown."""


@dataclass(frozen=True)
class Line:
    """One budget, as text: its FLOPs, whether that is beyond the data, each quantity's value and its interval."""

    budget: str
    beyond: bool
    values: Mapping[str, str]
    intervals: Mapping[str, str]


def lines(fit: Mapping[str, Any]) -> list[Line]:
    """Return the budgets, rising; none where nothing is recommended, and of files of earlier versions."""
    found = []
    for one in (fit.get("recommendation") or {}).get("optima") or ():
        bounds = one.get("intervals") or {}
        found.append(
            Line(
                numbers.scientific(one["budget_flops"], 3),
                bool(one.get("beyond")),
                {name: show(one.get(name)) for name, show in QUANTITIES.items()},
                {name: numbers.interval(bounds.get(name), show) for name, show in QUANTITIES.items()},
            )
        )
    return found
