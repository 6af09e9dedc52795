"""The ladder: a few sizes, each trained at the same multiples of its own parameters.

Small models at 1, 2, 5, 10 times the compute-optimal tokens tell what a large one will reach (Bhagia et al. 2024,
"Establishing Task Scaling Laws via Compute-Efficient Model Ladders").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.designs.isoflop import Shape, size, usable


@dataclass(frozen=True)
class Rung:
    """One run of the ladder: a shape and its tokens for each parameter."""

    shape: Shape
    ratio: float


def ladder(shapes: Sequence[Shape], ratios: Sequence[float]) -> list[Rung]:
    """Return every shape at every D/N [tokens per matmul parameter], sorted by size, then by ratio."""
    usable("search.ratios", ratios)
    if not shapes:
        raise ValueError("search=ladder needs sizes: give search.params, search.shapes or model.width")
    ordered = sorted(dict.fromkeys(shapes), key=size)
    return [Rung(shape, ratio) for shape in ordered for ratio in sorted(set(ratios))]


def nearest(params: Sequence[float], family: Sequence[Shape]) -> list[Shape]:
    """Return for each wanted size [matmul parameters] the shape whose log size is nearest, each shape once, by size."""
    usable("search.params", params)
    if not family:
        raise ValueError("the family has no shapes: raise search.width_max or lower search.width_step")
    found = {min(family, key=lambda s: (abs(math.log(s.params / wanted)), size(s))) for wanted in params}
    return sorted(found, key=size)
