"""What would narrow a forecast where the runs that the budget allows barely do: one run nearer to the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.inputs.dataset import Array
    from analysis.planning.candidates import Candidates
    from analysis.planning.posterior import Posterior

BARELY = 0.85
"""Runs that leave the forecast's interval wider than this share of what it is now barely narrow it."""
HELPS = 2 / 3
"""A larger run is named where it alone leaves the interval no wider than this share."""
LEVELS = 9
"""Budgets from the largest run that was allowed to the target among which such a run is looked for."""


@dataclass(frozen=True)
class Larger:
    """A run beyond what was allowed: FLOPs, parameters, tokens, the forecast's sd of ln loss after this run alone."""

    flops: float
    params: float
    tokens: float
    after: float


def larger(
    found: Posterior, aims: Array, offered: Callable[[float], Candidates], *, between: tuple[float, float], now: float
) -> Larger | None:
    """Return the smallest single run that brings the forecast's sd of ln loss to HELPS of `now`; None where none does.

    `aims` (k, t) are the places of the target; `offered` gives the candidates of a budget [FLOPs]; budgets lie inside
    `between`. Of each budget it is the run that tells most.
    """
    import numpy as np

    from analysis.planning import posterior

    low, high = between
    for level in np.geomspace(low, high, LEVELS)[1:-1] if low < high else ():
        pool = offered(float(level))
        places = found.to_logs((pool.params, pool.tokens))
        alone = posterior.batch(found, places, aims, pool.flops, budget=float(level), count=1, power=0.0)
        if alone and math.sqrt(alone[0].after) <= HELPS * now:
            at = alone[0].index
            return Larger(float(level), float(pool.params[at]), float(pool.tokens[at]), math.sqrt(alone[0].after))
    return None
