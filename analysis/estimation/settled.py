"""What a search leaves open: minima in slow valleys, those at a bound, and those that no start came to.

Nothing here is a better law of the runs; it is the same minimum on every machine and in any order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from analysis.estimation import bounds, ladders, level_ground, newton, ties
from analysis.estimation.fit_problem import Problem, by_rows, curvature, evaluate
from analysis.estimation.optimizer import Array, Index, Mask, Minimum

Search = Callable[[Problem, Array], Minimum]
"""A search for minima of a problem from starts (R, p)."""
LEAST, CELLS = 20, 30_000_000
"""Damped steps that are taken in any case, and rows x runs that all of them may look at."""
STILL = 1e-10
"""A row whose gradient, over its largest possible one, is below this has been found to all its digits."""
RIVAL = 0.02
"""Minima whose objectives are above the lowest by less than this share are near it."""
EQUAL = ties.EQUAL
"""Minima whose objectives differ by less than this share are equal."""


def settled(p: Problem, found: Minimum, starts: Array, search: Search) -> Minimum:
    """Return the minima found from `starts`, those near the best followed to their ends: along valleys, and to bounds.

    A floor that may be on its way to 0 is left out, and a power of the rows of one input alone is held as such: where
    the law is no worse for it, that is where the search was going.
    """
    found = _laddered(p, found, starts, search)
    held = bounds.without_floor(p)
    if held is not None:
        rows = near(found)
        rows = rows[bounds.falling(p, found.theta[rows]) | (found.gradient[rows] > _still(p))]
        if len(rows):
            found = _better(p, found, rows, _walked(held, search(held, found.theta[rows])))
    found = _walked(p, found)
    if found.gradient[chosen(found)] > _still(p):
        found = _walked(p, found, newton.LAST)
    return _levelled(p, _nearest_to_zero(p, _spiked(p, found, search)))


def _nearest_to_zero(p: Problem, found: Minimum) -> Minimum:
    """Return the minima with the one that is chosen moved to the constants nearest to zero that are as good."""
    row = np.array([chosen(found)])
    theta = level_ground.nearest_to_zero(p, found.theta[row[0]])[None]
    if (theta == found.theta[row]).all():
        return found
    told = _valued(p, replace(found, theta=theta, metric=found.metric[row]))
    return _put(found, row, told, np.isfinite(told.value), p)


def _levelled(p: Problem, found: Minimum) -> Minimum:
    """Return the minima with what an input that never varies leaves open told alike."""
    theta = bounds.levelled(p, found.theta)
    if theta is found.theta:
        return found
    told = _valued(p, replace(found, theta=theta))
    return _put(found, np.arange(len(theta)), told, np.isfinite(told.value), p)


def _laddered(p: Problem, found: Minimum, starts: Array, search: Search) -> Minimum:
    """Return the minima and those that rows at about one ratio of N and D may have besides."""
    if not ladders.terms(p):
        return found
    steep = [search(held, begun) for held, begun in ladders.steep(p, starts)]
    best = [each.theta[[chosen(each)]] for each in steep]
    mirrored = ladders.mirrored(p, found.theta[near(found)])
    if len(mirrored):
        best.append(mirrored)
    begun = np.concatenate(best) if best else found.theta[:0]
    more = search(p, begun).theta if best else begun
    z = p.constraint.reduce(more)
    value, gradient = evaluate(p, z)
    steepest, metric = np.abs(gradient).max(axis=1, initial=0.0), curvature(p, z)
    theta, value, steepest, metric = (
        np.concatenate(pair)
        for pair in ((found.theta, more), (found.value, value), (found.gradient, steepest), (found.metric, metric))
    )
    return Minimum(theta, value, steepest, metric, found.rounds)


def _spiked(p: Problem, found: Minimum, search: Search) -> Minimum:
    """Return the minima with powers of the rows of one input alone held as such, in those that are equal to the best.

    Of one such power there is one law, whichever search came to it.
    """
    lowest = found.value[chosen(found)]
    known: dict[tuple[int, bool], Minimum] = {}
    for row in np.flatnonzero(same(found.value, lowest)):
        for spike in bounds.spikes(p, found.theta[row]):
            value = float(spike.theta[spike.exponent])
            held = bounds.held(p, spike.exponent, value)
            if held is None:
                continue
            key = (spike.exponent, value > 0)
            if key not in known:
                known[key] = _walked(held, search(held, spike.theta[None]))
            found = _better(p, found, np.array([row]), known[key])
    return found


def _still(p: Problem) -> float:
    """Return the gradient below which a minimum has been found to all its digits."""
    return STILL * p.loss.scale * p.y.size


def near(found: Minimum) -> Index:
    """Return the numbers of the minima whose objective is within RIVAL of the lowest."""
    lowest = float(found.value.min())
    return np.flatnonzero(np.isfinite(found.value) & (found.value <= lowest + RIVAL * abs(lowest)))


def _walked(p: Problem, found: Minimum, rounds: int = newton.PATIENCE) -> Minimum:
    """Return the minima with those near the best whose gradient is not zero yet moved on by Newton's steps."""
    rows = near(found)
    rows = rows[found.gradient[rows] > _still(p)]
    if not len(rows):
        return found
    rounds = min(rounds, max(LEAST, CELLS // (len(rows) * p.y.size)))
    z = p.constraint.reduce(found.theta[rows])
    begun = Minimum(z, found.value[rows], found.gradient[rows], found.metric[rows], found.rounds)
    restrict, hessian = by_rows(p)
    ended = newton.descend(restrict, hessian, begun, np.full(len(rows), _still(p)), rounds)
    ended = newton.refine(restrict, hessian, ended)  # a descent ends where a step's fall is less than rounding
    return _put(found, rows, replace(ended, theta=p.expanded(ended.theta)), np.ones(len(rows), dtype=bool), p)


def _better(p: Problem, found: Minimum, rows: Index, held: Minimum) -> Minimum:
    """Return the minima with laws (r, p) of fewer constants in place of those in `rows` that are no better."""
    put, lowest = _valued(p, held), found.value[rows]
    return _put(found, rows, put, put.value <= lowest + EQUAL * np.abs(lowest), p)


def _valued(p: Problem, laws: Minimum) -> Minimum:
    """Return laws with the objectives and the gradients that they have in this problem."""
    value, gradient = evaluate(p, p.constraint.reduce(laws.theta))
    return replace(laws, value=value, gradient=np.abs(gradient).max(axis=1, initial=0.0))


def _put(found: Minimum, rows: Index, other: Minimum, good: Mask, p: Problem) -> Minimum:
    """Return the minima with other ones in some of their rows, and the metrics of these laws."""
    theta, value, gradient, metric = (a.copy() for a in (found.theta, found.value, found.gradient, found.metric))
    taken = rows[good]
    theta[taken], value[taken], gradient[taken] = other.theta[good], other.value[good], other.gradient[good]
    if len(taken):
        metric[taken] = curvature(p, p.constraint.reduce(theta[taken]))
    return Minimum(theta, value, gradient, metric, found.rounds)


def chosen(found: Minimum) -> int:
    """Return the number of the lowest minimum; of equal ones that of the smallest norm, to six digits, the first."""
    value = np.where(np.isfinite(found.value), found.value, np.inf)
    lowest = float(value.min())
    equal = np.flatnonzero(value <= lowest + EQUAL * abs(lowest) + 1e-300)
    norm = np.linalg.norm(found.theta[equal], axis=1)
    return int(equal[np.flatnonzero(norm <= norm.min() * (1.0 + 1e-6))[0]])


def same(value: Array, lead: Array) -> Array:
    """Return whether values, none below `lead`, are the same minimum."""
    return np.asarray(value <= lead + 1e-6 * np.abs(lead) + 1e-15)
