"""Keys of `search` that only designs of model sizes read: given to another search, they would do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sweeps.designs import DESIGNS

SIZED = tuple(name for name in DESIGNS if name != "grid")
"""Designs that choose model sizes."""
READ_BY: Mapping[str, tuple[str, ...]] = {
    "search.budgets": ("isoflop", "trunk_and_branch"),
    "search.ratios": SIZED,
    "search.tokens": ("trunk_and_branch",),
    "search.params": ("ladder", "random_nd", "trunk_and_branch"),
    "search.points": ("random_nd",),
    "search.shapes": ("isoflop", "ladder", "trunk_and_branch"),
    "search.width_step": SIZED,
    "search.width_max": SIZED,
    "search.aspect_ratio": SIZED,
    "search.min_layers": SIZED,
}


def check(search: str, typed: Iterable[str]) -> None:
    """Raise ValueError for a key on the command line, `typed`, that no design reads since `search` is none."""
    if search in SIZED:
        return
    for key in typed:
        if key in READ_BY:
            *others, last = (f"search={name}" for name in READ_BY[key])
            readers = f"{', '.join(others)} or {last}" if others else last
            raise ValueError(
                f"{key} has no effect with search={search}: it is read by {readers}; add one, or leave it out"
            )
