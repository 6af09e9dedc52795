"""Whether a law is one beyond its runs: the lowest loss of a budget falls less and less from one decade to the next."""

from __future__ import annotations

import numpy as np

from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Law
from analysis.text import numbers

SIZES = 1000.0
"""How far beyond the sizes swept the best one of a budget is looked for."""
TOLERANCE = 1.25
"""By how much a decade of compute may gain more than the one before."""
FEWEST = 2.0
"""The smallest range of compute within the runs of which a slope is taken."""


def quickening(law: Law, price: Cost, sizes: tuple[float, float], budgets: tuple[float, float]) -> str:
    """Return why the first draw of a law says nothing beyond its runs; empty where it may.

    sizes, budgets: smallest and largest of the runs [parameters], [FLOPs]. A sum of powers and a floor gains ever less
    from ten times the compute. A flexible law that bent to noise can gain ever more, down to a loss of nothing.
    """
    smallest, largest = budgets
    ends = [smallest] if largest / smallest >= FEWEST else []
    ends += [largest, 10.0 * largest, 100.0 * largest]
    losses = np.array([_lowest(law, price, sizes, budget) for budget in ends])
    with np.errstate(divide="ignore", invalid="ignore"):
        drops = -np.diff(np.log(losses)) / np.diff(np.log10(ends))  # of ln loss, a decade
    for before, after, begin in zip(drops[:-1], drops[1:], ends[1:-1], strict=True):
        if not after <= TOLERANCE * max(before, 0.0) + 1e-9:
            return (
                f"its loss falls ever faster: {_percent(before)} for ten times the compute up to "
                f"{numbers.flops(begin)}, {_percent(after)} beyond"
            )
    return ""


def _lowest(law: Law, price: Cost, sizes: tuple[float, float], budget: float) -> float:
    """Return the lowest loss of any size with this budget [FLOPs]."""
    low, high = np.log(sizes[0] / SIZES), np.log(sizes[1] * SIZES)
    params = np.linspace(low, high, 2000)[None]
    losses = law.row(0).loss(params, np.log(budget) - price.log_per_token(params)[0])
    return float(np.min(np.where(np.isfinite(losses), losses, np.inf)))


def _percent(drop: float) -> str:
    return f"{100.0 * -np.expm1(-drop):.3g} %"
