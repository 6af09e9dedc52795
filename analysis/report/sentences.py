"""What page and terminal say of the recommendation, in one place each, from the content of fit.json alone.

Standard library only: the terminal's lines are printed without numpy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.text import numbers
from analysis.values import approach_lines, choice_lines
from analysis.values.json_values import from_json, to_json
from analysis.values.study_result import Choice, Fit

Json = Mapping[str, Any]


TARGETS = {
    "learning_rate": "learning rate",
    "learning_rate_compute": "learning rate",
    "batch": "batch [tokens]",
    "batch_compute": "batch [tokens]",
    "critical_batch": "steps",
    "critical_batch_of_loss": "critical batch [tokens]",
    "downstream": "error",
    "curves": "loss",
    "surface": "loss",
}
"""What a law that was asked for gives, by its name or its approach."""


TESTED = {"valleys": "frontier", "law": "law asked for"}
"""What a backtest is of, in words, by its approach in fit.json."""


def side(block: Json) -> str:
    """Return the left side of a law that was asked for, "learning rate = "; nothing where its target has no name."""
    target = TARGETS.get(str(block.get("approach")))
    return f"{target} = " if target else ""


def read(fit: Fit) -> Json:
    """Return the content of fit.json that sentences read: all but the runs left out, which may be many."""
    said: Json = to_json(dataclasses.replace(fit, rows_dropped=()))
    return said


def no_interval(fit: Json) -> str:
    """Return why what is recommended has no interval."""
    plan = fit.get("recommendation") or {}
    if plan.get("approach") == "envelope":
        return "approach 1 gives power laws without draws"
    if not fit.get("resamples"):
        return "resamples=0"
    return "more than one in twenty resamples has no best size"


def between(fit: Json, bounds: object, show: Any = numbers.number) -> str:
    """Return "low to high", or that there is no interval and why."""
    text = numbers.interval(bounds, show)
    return f"no interval: {no_interval(fit)}" if text == numbers.MISSING else text


def by(plan: Json) -> str:
    """Return which approach is recommended, in words."""
    return {"law": "the law asked for"}.get(str(plan.get("approach")), f"the {plan.get('approach')}")


def power_law(fit: Json, quantity: str) -> str | None:
    """Return "N* = 2.8B (C / 1e21)^0.506, exponent 0.494 to 0.518" of the recommended law; None where it has none."""
    plan = fit.get("recommendation") or {}
    growth = (plan.get("growth") or {}).get(quantity)
    if not growth:
        return None
    symbol = {"params": "N*", "tokens": "D*"}[quantity]
    ends = numbers.interval(growth.get("interval"))
    none = f"no interval: {growth.get('reason') or no_interval(fit)}"
    return (
        f"{symbol} = {numbers.amount(growth['value'])} (C / {numbers.scientific(growth['reference_flops'])})^"
        f"{numbers.number(growth['exponent'])}, {none if ends == numbers.MISSING else f'exponent {ends}'}"
    )


def backtest(fit: Json) -> str:
    """Return how far off the backtest is, over what factor, and whether that is the recommendation's."""
    test = fit.get("backtest")
    if not test:
        return "none: it needs at least three budgets, two of them 1.5 times below the largest or more"
    error = numbers.finite(test.get("relative_error"))
    if error is None:
        return f"none: {test.get('reason') or 'its error is no number'}"
    whose = f" by the {tested(fit)}" if tested(fit) else ""
    text = (
        f"{numbers.percent(abs(error))} error{whose} in the lowest loss of the held-out largest budget, "
        f"{numbers.flops(test.get('held_out_budget'))}, {numbers.factor(test.get('extrapolation_factor'))} "
        "beyond its fit"
    )
    return text + "".join(f"; {said}" for said in (uncovered(fit), sided(test)) if said)


def tested(fit: Json) -> str:
    """Return what the backtest is of, "frontier"; empty where that is the approach that is recommended."""
    name = str((fit.get("backtest") or {}).get("approach") or "")
    plan = fit.get("recommendation") or {}
    return "" if name == plan.get("approach") and name != "valleys" else TESTED.get(name, name)


def uncovered(fit: Json) -> str:
    """Return that no test reaches as far as the recommendation does; empty where one does or none is made."""
    test = fit.get("backtest") or {}
    if not fit.get("recommendation") or test.get("covers", True) or not test.get("recommended_factor"):
        return ""
    return f"no test reaches the recommendation's {numbers.factor(test['recommended_factor'])}"


def sided(test: Json) -> str:
    """Return that all held-out losses are predicted too high, or too low; empty where they are not."""
    mean = numbers.finite(test.get("mean_relative_error"))
    if not test.get("one_sided") or mean is None:
        return ""
    side = "high" if mean > 0 else "low"
    off = numbers.percent(abs(mean))
    return f"all {len(test.get('runs') or ())} held-out losses predicted too {side}, by {off} on average"


def choices(fit: Json, beside: str = "") -> str:
    """Return between what the surface's exponent lies over other choices of the analysis; empty where these are few.

    `beside` stands after the range. Whose exponent it is not is said where another approach is recommended.
    """
    lines = choice_lines.telling(from_json(Choice, line, "sensitivity") for line in fit.get("sensitivity") or ())
    values = [line.value for line in lines if line.value is not None]
    if len(values) < 3:
        return ""
    low, high = numbers.number(min(values)), numbers.number(max(values))
    approach = (fit.get("recommendation") or {}).get("approach", "surface")
    other = "" if approach == "surface" else f"; the recommendation is by the {approach}"
    between = f"the surface's {lines[0].quantity} lies between {low} and {high}"
    return f"{between} over {len(lines)} choices of rows and loss{beside}{other}"


def apart(fit: Json) -> tuple[float | None, int]:
    """Return the largest ratio of N* between the approaches that are compared, and how many of those give one."""
    plan = fit.get("recommendation") or {}
    sizes = {name: numbers.finite(p.get("params")) for name, p in (plan.get("by_approach") or {}).items()}
    for line in filter(approach_lines.compared, _approaches(fit)):
        name = {"3 surface": "surface"}.get(str(line.get("approach")), str(line.get("approach")))
        sizes.setdefault(name, numbers.finite(line.get("params")))
    known = [size for size in sizes.values() if size is not None and math.isfinite(size)]
    return (max(known) / min(known) if len(known) > 1 else None), len(known)


def noted(fit: Json) -> str:
    """Return "without approach 1" where an approach gives an N* that is not compared, else nothing."""
    lines = (line for line in _approaches(fit) if not approach_lines.compared(line))
    left = {str(line.get("approach")).partition(" ")[0] for line in lines}
    return f"without approach {' and '.join(sorted(left))}" if left else ""


def _approaches(fit: Json) -> Sequence[Json]:
    """Return the lines of the table of approaches."""
    return (fit.get("record") or {}).get("approaches") or ()
