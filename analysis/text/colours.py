"""Colours of budgets, wherever a study is shown: in the report's figures and in MLflow. Standard library only.

Budgets, which are ordered, take equal steps of lightness along one sequence, so that they stay apart in grey and for
readers who do not tell red from green.
"""

from __future__ import annotations

from collections.abc import Sequence

LIGHT_RAMP = (
    "#150b51", "#1d1668", "#242280", "#2c2e98", "#4c37a3", "#6b40aa", "#97449b", "#ba4b89", "#d35a6d", "#e26f55",
    "#e9863c", "#eaa028", "#e7b902",
)  # fmt: skip
"""CIE lightness 9 to 77 in equal steps, from near-black blue to amber: on white."""
DARK_RAMP = (
    "#5a42cc", "#794bce", "#9752ca", "#b55ab8", "#d0649c", "#e07482", "#e7886e", "#ec9c5e", "#f0af53", "#f3c250",
    "#f8d26d", "#fbe388", "#fdf5a5",
)  # fmt: skip
"""CIE lightness 38 to 96 in nearly equal steps, equal enough for readers who do not tell red from green, on black."""


def ramp(count: int) -> list[str]:
    """Return so many ordered colours, from the smallest budget to the largest."""
    if count <= 1:
        return [mix(LIGHT_RAMP, 0.3)] * count
    return [mix(LIGHT_RAMP, i / (count - 1)) for i in range(count)]


def mix(stops: Sequence[str], share: float) -> str:
    """Return the colour at a share of the way along a sequence, 0 its beginning, 1 its end."""
    place = share * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    a, b, t = stops[low], stops[low + 1], place - low
    parts = [round(int(a[i : i + 2], 16) * (1 - t) + int(b[i : i + 2], 16) * t) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in parts)
