"""What resamples of the runs alone say of a forecast: the interval of plans, beside that of a posterior."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.inputs.dataset import Rows
    from analysis.values.blocks import Interval

RESAMPLES, SEED = 1000, 0
"""Those of a plan where nothing else is asked: the interval is the same to the last digit."""


def interval(rows: Rows, form: str, budget: float) -> Interval | None:
    """Return the 95 % interval of the loss that a budget [FLOPs] buys, as analysis.plan gives it; None without one."""
    from analysis.approaches import optimum
    from analysis.approaches.cost import cost
    from analysis.inference import resampling
    from analysis.planning import basis

    price, sizes = cost(rows), (float(rows.params.min()), float(rows.params.max()))
    try:
        law, _ = basis.drawn(rows, form, price, {}, resamples=RESAMPLES, seed=SEED)
    except ValueError:  # too few runs for the law, which a posterior can do with
        return None
    loss = optimum.training_only(law, price, budget, sizes).loss
    return resampling.interval(loss[1:], float(loss[0])) if math.isfinite(float(loss[0])) else None
