"""The compute-optimal path of the recommended law: N*, D* and loss at rising budgets, and how they grow.

Page, figures, terminal and MLflow read the recommended law's frontier from here alone, so that they cannot tell two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.inputs.dataset import Rows
from analysis.text import numbers
from analysis.values.blocks import Block, PowerLaw
from analysis.values.study_result import BudgetOptimum, Growth, PathPoint, Proposal, Recommendation

SAMPLES = 25
"""Budgets at which the path is worked out; a law without a closed form is searched at each of them."""
MOST_BUDGETS = 12
"""Of more budgets of the data the table of best sizes has whole decades; beyond the data it has no more than these."""
DECADES = 3
"""How far beyond the data the table of best sizes goes at least."""
SAME = 0.01
"""A budget of the data that differs by less from the one asked for is that one."""
APART = 1.2
"""Whole decades closer to another budget of the table than this are left out of it."""

Proposer = Callable[[float], Proposal | None]


def path(propose: Proposer, low: float, high: float, samples: int = SAMPLES) -> tuple[PathPoint, ...]:
    """Return the law's best run at `samples` budgets from `low` to `high` [FLOPs], those where it has one."""
    found = []
    for budget in np.geomspace(low, high, samples):
        best = propose(float(budget))
        if best is not None:
            found.append(PathPoint(float(budget), best.params, best.tokens, best.loss, best.intervals))
    return tuple(found)


def budgets(data: Sequence[float], target: float) -> tuple[float, ...]:
    """Return the budgets [FLOPs] of the table of best sizes, rising, from those of the data and the one asked for.

    >>> budgets([1e18, 3e18, 9.6e18], 9.6e19)
    (1e+18, 3e+18, 9.6e+18, 9.6e+19, 1e+21, 1e+22)
    """
    first, last = min(data), max(data)
    end = max(target, last * 10.0**DECADES)
    kept = [flops for flops in ({first, last} if len(data) > MOST_BUDGETS else data) if abs(flops / target - 1) > SAME]
    kept.append(target)
    beyond = list(_decades(last, end * APART))
    within = _decades(first, last) if len(data) > MOST_BUDGETS else ()
    for flops in (*within, *beyond[:: -(-len(beyond) // MOST_BUDGETS)]):
        if all(max(flops / other, other / flops) >= APART for other in kept):
            kept.append(flops)
    return tuple(sorted(set(map(float, kept))))


def data_end(data: Sequence[float], largest: float) -> float:
    """Return the FLOPs beyond which there are no data: of budgets and of the `largest` run [FLOPs] the greatest."""
    return max(largest, *data)


def optima(propose: Proposer, data: Sequence[float], largest: float, target: float) -> tuple[BudgetOptimum, ...]:
    """Return the law's best run at each budget of the table, those where it has one; `largest` run [FLOPs] of all."""
    end, found = data_end(data, largest), []
    for budget in budgets(data, target):
        best = propose(budget)
        if best is not None:
            found.append(
                BudgetOptimum(
                    budget, best.params, best.tokens, best.tokens_per_param, best.loss, best.intervals, budget > end
                )
            )
    return tuple(found)


def _decades(low: float, high: float) -> list[float]:
    """Return the whole decades above `low` and up to `high`."""
    return [float(f"1e{n}") for n in range(math.floor(math.log10(low)) + 1, math.floor(math.log10(high)) + 1)]


def by_exponents(plan: Recommendation, block: Block) -> dict[str, Growth]:
    """Return the growth by a law that derives the exponents a of N* and b of D*; empty where it does not.

    Constants that a form itself calls a and b, as Gadre et al.'s coefficients, are no such exponents.
    """
    known = block.derived
    if not {"a", "b"} <= known.keys():
        return {}
    made = {}
    for quantity, name in (("params", "a"), ("tokens", "b")):
        verdict = block.identified.get(name)
        interval = block.intervals.get(name) if verdict is None or verdict.identified else None
        value = float(getattr(plan, quantity))
        made[quantity] = Growth(value, known[name], plan.budget_flops, interval, "" if interval else _why(block, name))
    return made


def by_power_laws(plan: Recommendation, laws: Mapping[str, PowerLaw]) -> dict[str, Growth]:
    """Return the growth by power laws of N* and D*."""
    return {
        name: Growth(
            float(getattr(plan, name)), law.exponent, plan.budget_flops, law.exponent_interval,
            "" if law.exponent_interval else "no resample gave one",
        )
        for name, law in laws.items()
    }  # fmt: skip


def by_slope(plan: Recommendation, points: tuple[PathPoint, ...]) -> dict[str, Growth]:
    """Return the growth over the last stretch of the path, of laws that give no exponent in closed form."""
    near = [p for p in points if p.flops < plan.budget_flops / 1.5]
    if not near:
        return {}
    last = near[-1]
    far = math.log(plan.budget_flops / last.flops)
    reason = f"it is the slope of this law's path from {numbers.flops(last.flops)} on"
    return {
        name: Growth(
            float(getattr(plan, name)), math.log(getattr(plan, name) / getattr(last, name)) / far, plan.budget_flops,
            None, reason,
        )
        for name in ("params", "tokens")
    }  # fmt: skip


def with_path(
    plan: Recommendation,
    propose: Proposer,
    rows: Rows,
    grow: Callable[..., dict[str, Growth]],
    sketch: Proposer | None = None,
) -> Recommendation:
    """Return the recommendation with its path from the smallest run on, how it grows and its table of best sizes.

    `grow(plan, points)` says how it grows. `sketch` proposes for the path, where `propose` has too many draws for it.
    """
    start, target = float(rows.flops.min()), plan.budget_flops
    before = [p for p in path(sketch or propose, start, target) if p.flops < target * (1 - 1e-9)]
    end = PathPoint(target, plan.params, plan.tokens, plan.loss, plan.intervals)
    points = (*before, end)
    table = optima(propose, rows.labels.tolist(), float(rows.flops.max()), target)
    return dataclasses.replace(plan, path=points, growth=grow(plan, points), optima=table)


def _why(block: Block, name: str) -> str:
    verdict = block.identified.get(name)
    if verdict is not None and not verdict.identified:
        return verdict.reason
    return "the fit was made without resamples" if block.intervals.get(name) is None else ""
