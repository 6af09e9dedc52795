"""What a study's recommended law says of other budgets: N*, D* and loss at each, from `fit.json` alone. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.text import numbers

BEYOND = (10.0, 100.0)
"""How far past the recommended budget the table goes."""
CLOSE = 1.02
"""Budgets that differ by less are one: the exact FLOPs of a run differ a little from its budget."""


@dataclass(frozen=True)
class BestSize:
    """The compute-optimal run of a budget [FLOPs]: parameters, tokens, loss [the fit's unit].

    loss is None where the law gives none there; low and high bound the parameters, None where no interval is known.
    """

    flops: float
    params: float
    tokens: float
    loss: float | None = None
    low: float | None = None
    high: float | None = None


def best_sizes(fit: Mapping[str, Any], studied: Iterable[float]) -> list[BestSize]:
    """Return the best run of each budget studied, of whole decades up to the recommended one, of it, and beyond it.

    Between the points of the law's path they are interpolated. Outside of it N* and D* go on with the exponents of the
    fit's growth; without exponents there are none.
    """
    plan = fit.get("recommendation") or {}
    path = [_point(entry) for entry in plan.get("path") or ()]
    if not path:
        return []
    growth = plan.get("growth") or {}
    exponents = [numbers.finite((growth.get(name) or {}).get("exponent")) for name in ("params", "tokens")]
    first, last = path[0].flops, path[-1].flops
    decades = (10.0**n for n in range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1))
    wanted = [*studied, *(flops for flops in decades if first <= flops <= last), last, *(last * far for far in BEYOND)]
    found = (_at(flops, path, exponents, _surface(fit)) for flops in _apart(wanted))
    return [one for one in found if one is not None]


def growth(fit: Mapping[str, Any]) -> str:
    """Return how N* and D* grow, `N\\* = 15.5M (C/1e17)^0.395`, for budgets that no table names; "" where unknown."""
    said = []
    for name, letter in (("params", "N"), ("tokens", "D")):
        found = ((fit.get("recommendation") or {}).get("growth") or {}).get(name) or {}
        known = [numbers.finite(found.get(key)) for key in ("value", "exponent", "reference_flops")]
        if any(value is None for value in known):
            return ""
        value, exponent, flops = known
        said.append(f"{letter}\\* = {numbers.amount(value)} (C/{numbers.scientific(flops)})^{numbers.number(exponent)}")
    return ", ".join(said)


def _point(entry: Mapping[str, Any]) -> BestSize:
    low, high = (entry.get("intervals") or {}).get("params") or (None, None)
    return BestSize(
        float(entry["flops"]), float(entry["params"]), float(entry["tokens"]), numbers.finite(entry.get("loss")),
        numbers.finite(low), numbers.finite(high),
    )  # fmt: skip


def _apart(budgets: Iterable[float]) -> list[float]:
    """Return budgets in order, of those that are close the one that was asked for first."""
    kept: list[float] = []
    for flops in budgets:
        if not any(1 / CLOSE < flops / other < CLOSE for other in kept):
            kept.append(flops)
    return sorted(kept)


def _at(
    flops: float, path: Sequence[BestSize], exponents: Sequence[float | None], surface: Sequence[float] | None
) -> BestSize | None:
    inside = path[0].flops / CLOSE <= flops <= path[-1].flops * CLOSE
    if inside:
        above = min(max(bisect.bisect_left([point.flops for point in path], flops), 1), len(path) - 1)
        return _between(path[max(0, above - 1)], path[above], flops)
    near = path[0] if flops < path[0].flops else path[-1]
    a, b = exponents
    if a is None or b is None:
        return None
    params, tokens = near.params * (flops / near.flops) ** a, near.tokens * (flops / near.flops) ** b
    if surface is None:
        return BestSize(flops, params, tokens)
    floor, size, data, alpha, beta = surface
    return BestSize(flops, params, tokens, floor + size / params**alpha + data / tokens**beta)


def _between(one: BestSize, other: BestSize, flops: float) -> BestSize:
    """Return the point between two of the path, linear in logarithms; the nearer end where they are one point."""
    far = math.log(other.flops / one.flops)
    share = min(max(math.log(flops / one.flops) / far, 0.0), 1.0) if far else 0.0

    def mixed(first: float | None, second: float | None) -> float | None:
        if first is None or second is None or min(first, second) <= 0:
            return None
        return math.exp((1 - share) * math.log(first) + share * math.log(second))

    params, tokens = mixed(one.params, other.params), mixed(one.tokens, other.tokens)
    assert params is not None and tokens is not None, "sizes are positive"
    return BestSize(
        flops, params, tokens, mixed(one.loss, other.loss), mixed(one.low, other.low), mixed(one.high, other.high)
    )


def _surface(fit: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return E, A, B, alpha and beta of the surface where the recommendation follows it."""
    plan = fit.get("recommendation") or {}
    if plan.get("approach") != "surface" or plan.get("loss_from", "surface") != "surface":
        return None
    known = ((fit.get("fits") or {}).get("surface") or fit).get("params") or {}
    found = [numbers.finite(known.get(name)) for name in ("E", "A", "B", "alpha", "beta")]
    values = tuple(value for value in found if value is not None)
    return values if len(values) == len(found) else None
