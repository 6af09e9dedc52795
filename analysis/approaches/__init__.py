"""The three approaches of Hoffmann et al. 2022, and related ones.

`side_by_side` is imported when it is first used: importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.approaches.comparison import side_by_side

__all__ = ["side_by_side"]


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]


def __getattr__(name: str) -> Any:
    """Return the table of all approaches, importing its module."""
    if name == "side_by_side":
        from analysis.approaches.comparison import side_by_side

        return side_by_side
    raise AttributeError(f"module 'analysis.approaches' has no attribute {name!r}")
