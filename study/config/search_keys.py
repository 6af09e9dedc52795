"""Keys of `search` that only some searches read: typed with a design that does not, they would do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sweeps.designs import DESIGNS
from sweeps.schedulers import SCHEDULERS, Compares

SIZED = tuple(name for name in DESIGNS if name != "grid")
"""Designs that choose model sizes."""
ALLOCATING = tuple(SCHEDULERS)
"""Searches that allocate budget as results arrive."""
COMPARING = tuple(name for name, entry in SCHEDULERS.items() if entry.compares is not Compares.NEVER)
AT_RUNGS = tuple(name for name, entry in SCHEDULERS.items() if entry.compares is Compares.AT_RUNGS)
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
    "search.trials": ALLOCATING,
    "search.min_tokens": COMPARING,
    "search.eta": AT_RUNGS,
    "search.sampler": ALLOCATING,
    "search.objectives": ALLOCATING,
    "search.enqueue": ALLOCATING,
    "search.quantile": ("pbt",),
    "search.resample": ("pbt",),
    "search.stake": ("asha_guarded",),
    "search.explore": ("pbt",),
    "search.burn_in_tokens": ("pbt",),
    "search.budget_flops": ALLOCATING,
    "search.budget_gpu_hours": ALLOCATING,
    "search.shape": ALLOCATING,
    "search.workers": ALLOCATING,
    "search.lease_seconds": ALLOCATING,
}


def check(search: str, typed: Iterable[str]) -> None:
    """Raise ValueError for a key on the command line, `typed`, that this search does not read.

    A search that allocates budget may have keys of another one, so that a command can change from one to the other.
    """
    for key in typed:
        readers = READ_BY.get(key, ())
        if not readers or search in readers or (search in ALLOCATING and readers[0] in ALLOCATING):
            continue
        *others, last = (f"search={name}" for name in readers)
        named = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{key} has no effect with search={search}: it is read by {named}; take one, or leave it out")
