"""Runs spread at random over sizes and tokens: what a fit of a loss surface L(N, D) asks for.

Latin hypercube in log N and log D/N: each of `count` equal parts of either range holds one run, so that a few runs
already cover both, which independent draws do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sweeps.designs.isoflop import Shape, usable
from sweeps.designs.ladder import Rung, nearest


def random_nd(
    params: Sequence[float], ratios: Sequence[float], family: Sequence[Shape], count: int, seed: int
) -> list[Rung]:
    """Return `count` runs: sizes between the least and the largest of `params`, D/N between those of `ratios`.

    Sizes are those of the nearest shape of the family, and the tokens follow from the shape's own N.
    """
    usable("search.params", params)
    usable("search.ratios", ratios)
    if count < 1:
        raise ValueError(f"search.points={count} is not allowed: at least one run")
    import numpy as np  # takes a fifth of a command's start, which other designs need not wait for

    random = np.random.default_rng(seed)
    places = [(random.permutation(count) + random.random(count)) / count for _ in range(2)]
    sizes, multiples = (_spread(span, place) for span, place in zip((params, ratios), places, strict=True))
    return [Rung(nearest([n], family)[0], ratio) for n, ratio in zip(sizes, multiples, strict=True)]


def _spread(span: Sequence[float], places: Iterable[float]) -> list[float]:
    low, high = math.log(min(span)), math.log(max(span))
    return [math.exp(low + (high - low) * float(place)) for place in places]
