"""The compute-optimal path of the recommended law: N*, D* and loss at rising budgets, and how they grow.

Page, figures and terminal read the recommended law's frontier from here alone, so that they cannot tell two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from analysis.text import numbers
from analysis.values.blocks import Block, PowerLaw
from analysis.values.study_result import Growth, PathPoint, Proposal, Recommendation

SAMPLES = 25
"""Budgets at which the path is worked out; a law without a closed form is searched at each of them."""

Proposer = Callable[[float], Proposal | None]


def path(propose: Proposer, low: float, high: float, samples: int = SAMPLES) -> tuple[PathPoint, ...]:
    """Return the law's best run at `samples` budgets from `low` to `high` [FLOPs], those where it has one."""
    found = []
    for budget in np.geomspace(low, high, samples):
        best = propose(float(budget))
        if best is not None:
            found.append(PathPoint(float(budget), best.params, best.tokens, best.loss, best.intervals))
    return tuple(found)


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
    plan: Recommendation, propose: Proposer, smallest: float, grow: Callable[..., dict[str, Growth]]
) -> Recommendation:
    """Return the recommendation with its path from the smallest run [FLOPs] on; `grow(plan, points)` says how."""
    before = [p for p in path(propose, smallest, plan.budget_flops) if p.flops < plan.budget_flops * (1 - 1e-9)]
    end = PathPoint(plan.budget_flops, plan.params, plan.tokens, plan.loss, plan.intervals)
    points = (*before, end)
    return dataclasses.replace(plan, path=points, growth=grow(plan, points))


def _why(block: Block, name: str) -> str:
    verdict = block.identified.get(name)
    if verdict is not None and not verdict.identified:
        return verdict.reason
    return "the fit was made without resamples" if block.intervals.get(name) is None else ""
