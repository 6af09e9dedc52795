"""The isoFLOP design: at each compute budget, several sizes around the one that would be best.

Compute C, parameters N and tokens D of a run hang together by C = F(shape) D, with F the exact FLOPs per token of a
shape. A budget and a wanted ratio r = D/N therefore pick the shape whose C / (F N) comes nearest to r.
After Hoffmann et al. 2022 ("Training Compute-Optimal Large Language Models"), approach 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A model that could be trained: its size and what a token costs.

    params: matmul parameters N. flops_per_token: forward and backward [FLOPs per token].
    """

    width: int
    layers: int
    params: int
    flops_per_token: int

    def ratio(self, budget: float) -> float:
        """Return D/N [tokens per parameter] of this shape trained with `budget` FLOPs."""
        return budget / self.flops_per_token / self.params


@dataclass(frozen=True)
class Assignment:
    """One run of the design: a shape and its compute [FLOPs]."""

    shape: Shape
    budget: float


def by_ratio(budgets: Sequence[float], ratios: Sequence[float], shapes: Sequence[Shape]) -> list[Assignment]:
    """Return for each budget [FLOPs] one shape per wanted D/N [tokens per parameter], no shape twice.

    The shape with the nearest log ratio is taken; where two ratios want the same one, the nearer gets it and the
    other the next nearest. Sorted by budget, then by size. ValueError if there are fewer shapes than ratios.
    """
    usable("search.budgets", budgets)
    usable("search.ratios", ratios)
    unique = list(dict.fromkeys(shapes))
    if len(unique) < len(set(ratios)):
        raise ValueError(
            f"search.ratios has {len(set(ratios))} values but the family has only {len(unique)} shapes: "
            "lower search.width_step, raise search.width_max or give fewer ratios"
        )
    return [
        Assignment(shape, budget)
        for budget in sorted(set(budgets))
        for shape in _nearest(budget, sorted(set(ratios)), unique)
    ]


def crossed(budgets: Sequence[float], shapes: Sequence[Shape]) -> list[Assignment]:
    """Return every shape at every budget [FLOPs], sorted by budget, then by size."""
    usable("search.budgets", budgets)
    if not shapes:
        raise ValueError("search.shapes is empty: give a list of {width, layers}")
    ordered = sorted(dict.fromkeys(shapes), key=size)
    return [Assignment(shape, budget) for budget in sorted(set(budgets)) for shape in ordered]


def _nearest(budget: float, ratios: Sequence[float], shapes: Sequence[Shape]) -> list[Shape]:
    """Return one shape per ratio, by greedy assignment of the nearest pairs first; ties go to the smaller shape."""
    pairs = sorted(
        (abs(math.log(shape.ratio(budget) / ratio)), size(shape), number, ratio)
        for number, shape in enumerate(shapes)
        for ratio in ratios
    )
    taken: dict[float, int] = {}
    for _, _, number, ratio in pairs:
        if ratio not in taken and number not in taken.values():
            taken[ratio] = number
    return sorted((shapes[number] for number in taken.values()), key=size)


def size(shape: Shape) -> tuple[int, int, int]:
    """Return what orders shapes by size."""
    return shape.params, shape.width, shape.layers


def usable(name: str, values: Sequence[float]) -> None:
    """Raise ValueError where a list of the search section is empty or holds what is not a positive number."""
    if not values:
        raise ValueError(f"{name} is empty: the design needs at least one value, for example {name}=[20]")
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} holds {value}, which is not a positive number")
