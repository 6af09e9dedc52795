"""What resamples of the runs alone say of a forecast: the interval of plans, and whether its law may be advised."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inputs.dataset import Rows
    from analysis.values.blocks import Check, Interval

RESAMPLES, SEED = 1000, 0
"""Those of a plan where nothing else is asked: the interval is the same to the last digit."""


def interval(
    frame: pd.DataFrame, rows: Rows, form: str, budget: float, checks: Iterable[Check]
) -> tuple[Interval | None, str]:
    """Return the 95 % interval of the loss that a budget [FLOPs] buys, as plans give it, and why none may be advised.

    There is no interval where the runs are too few for the law; the reason is empty where the law may be advised.
    """
    from analysis.approaches import optimum
    from analysis.inference import resampling
    from analysis.planning import advice, basis

    try:
        judged, *_ = basis.judged_of(frame, rows, form, {}, checks, asked={"resamples": RESAMPLES, "seed": SEED})
    except ValueError:  # a law that a posterior can do with
        return None, ""
    said, found = judged.at(budget), judged.candidate
    why = "" if said.follows == advice.LAW else said.why
    if found is None:
        return None, why
    loss = optimum.training_only(found.law, found.price, budget, found.sizes).loss
    return resampling.interval(loss[1:], float(loss[0])) if math.isfinite(float(loss[0])) else None, why
