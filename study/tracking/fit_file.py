"""What MLflow shows of a report's fit.json: its shape, as far as it is read here, and reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study.storage.shapes import FLAG, LOSS, TEXT, Form, Shape, object_list, object_of, read_record, values_of

NUMBERS = values_of(LOSS, "an object of numbers")
"""Where nothing is known, a number is null, or NaN in files of earlier versions."""
INTERVAL = Form(
    "a list of two numbers",
    lambda value: isinstance(value, list) and len(value) == 2 and all(one is None or LOSS.fits(one) for one in value),
)
INTERVALS = values_of(INTERVAL, "an object of intervals")
IDENTIFIED = Shape("", {"identified": FLAG, "side": TEXT, "limit": LOSS})
CHECK = Shape("", dict.fromkeys(("code", "level", "message", "advice"), TEXT))
GROWTH = Shape(
    "growth with the budget",
    {"interval": INTERVAL, "reason": TEXT, **dict.fromkeys(("value", "reference_flops", "exponent"), LOSS)},
    ("value", "reference_flops", "exponent"),
)
OPTIMUM = Shape(
    "an optimum",
    {"beyond": FLAG, "intervals": INTERVALS, **dict.fromkeys(("params", "tokens", "tokens_per_param", "loss"), LOSS)},
    ("budget_flops",),
)
RECOMMENDATION = Shape(
    "a recommendation",
    {
        **dict.fromkeys(("budget_flops", "params", "tokens", "tokens_per_param", "loss"), LOSS),
        "approach": TEXT,
        "intervals": INTERVALS,
        "optima": object_list(OPTIMUM, "a list of optima"),
        "growth": values_of(object_of(GROWTH), "an object of growths"),
    },
)
_FIGURES = ("predicted", "observed", "relative_error", "mean_abs_relative_error", "extrapolation_factor")
BACKTEST = Shape("a backtest", dict.fromkeys((*_FIGURES, "held_out_budget"), LOSS))
RUNS = Shape("counts of runs", dict.fromkeys(("used", "total", "largest_flops"), LOSS))
FIT = Shape(
    "a fit",
    {
        **dict.fromkeys(("form", "status", "reason", "interval_method"), TEXT),
        "confidence": LOSS,
        "params": NUMBERS,
        "derived": NUMBERS,
        "intervals": INTERVALS,
        "identified": values_of(object_of(IDENTIFIED), "an object of what is identified"),
        "checks": object_list(CHECK, "a list of checks"),
        "runs": object_of(RUNS),
        "backtest": object_of(BACKTEST),
        "recommendation": object_of(RECOMMENDATION),
    },
    remedy="make the report again: python -m analysis.fit",
)


def read_fit(path: Path) -> dict[str, Any] | None:
    """Return the content of a fit.json; None where there is none, and, with a warning, where it is damaged."""
    return read_record(path, FIT)
