"""Sums of powers by their level and slopes at the centre of the inputs: coordinates in which valleys are straight.

Where alpha falls, A grows as 1/alpha and E falls by as much, while the losses of the runs hardly change: E, A and alpha
lie in a long bent valley. The level E + A + B and the slopes alpha A and beta B stay as they are along it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from analysis.estimation.optimizer import Array, Evaluate, Index, Minimum, Restrict, minimise
from analysis.laws.base import Form
from analysis.laws.sum_of_powers import SumOfPowers

Metric = Callable[[Index], Array]
BEFORE, ROUNDS = 100, 150
"""Rounds of BFGS as the constants are before rows that have not arrived are searched by levels, and rounds of that."""
ARRIVED = 100.0
"""Tolerances within which a row has arrived: rounding may hide the rest, which Newton's steps find."""
FLATTEST = 1e-6
"""Exponents below this have no slope to speak of: such rows are left as they are."""


def has_levels(form: Form) -> TypeGuard[SumOfPowers]:
    """Return whether a form is a floor and powers of one input each."""
    return isinstance(form, SumOfPowers) and bool(form.floor) and all(len(parts) == 1 for _, parts in form.powers)


def levels(form: SumOfPowers, theta: Array) -> tuple[Array, Array]:
    """Return the coordinates (R, p) and their derivatives (R, p, p) by theta, whose exponents are positive.

    ln of the level takes the place of the floor's, ln of the slopes that of the coefficients'.
    """
    points, slopes = theta.copy(), np.tile(np.eye(theta.shape[1]), (len(theta), 1, 1))
    terms = [0, *(c for c, _ in form.pairs)]
    points[:, 0] = np.logaddexp.reduce(theta[:, terms], axis=1)
    slopes[:, 0, terms] = np.exp(theta[:, terms] - points[:, :1])
    for c, e in form.pairs:
        points[:, c] += np.log(theta[:, e])
        slopes[:, c, e] = 1.0 / theta[:, e]
    return points, slopes


def of_levels(form: SumOfPowers, points: Array) -> tuple[Array, Array]:
    """Return theta (R, p) and its derivatives (R, p, p) by the coordinates; theta is nan where no floor is left."""
    theta, slopes = points.copy(), np.tile(np.eye(points.shape[1]), (len(points), 1, 1))
    with np.errstate(all="ignore"):
        for c, e in form.pairs:
            theta[:, c] = points[:, c] - np.log(points[:, e])
            slopes[:, c, e] = -1.0 / points[:, e]
        floor = np.exp(points[:, 0]) - sum(np.exp(theta[:, c]) for c, _ in form.pairs)
        theta[:, 0] = np.log(floor)
        slopes[:, 0, 0] = np.exp(points[:, 0]) / floor
        for c, e in form.pairs:
            share = np.exp(theta[:, c]) / floor
            slopes[:, 0, c] = -share
            slopes[:, 0, e] += share / points[:, e]
    return theta, slopes


def search(form: SumOfPowers, restrict: Restrict, found: Minimum, metric: Metric, tolerance: Array) -> Minimum:
    """Return the minima (R, p) with those that had not arrived and that did so, lower, in these coordinates.

    `restrict` is as in `optimizer.minimise`, `metric(rows)` the inverse Hessians at found.theta. Other rows stay as
    they were: where E falls to 0 these coordinates end, and the valley may go on.
    """
    rows = np.flatnonzero((found.gradient > tolerance) & np.isfinite(found.value))
    rows = rows[(found.theta[rows][:, [e for _, e in form.pairs]] > FLATTEST).all(axis=1)]
    if not len(rows):
        return found
    start, by = levels(form, found.theta[rows])
    own = np.einsum("rpq,rqs,rts->rpt", by, metric(rows), by)
    ended = minimise(lambda i: _by_levels(form, restrict(rows[i])), start, own, tolerance[rows], rounds=ROUNDS)
    good = (ended.value < found.value[rows]) & (ended.gradient <= ARRIVED * tolerance[rows])
    rounds = found.rounds + ended.rounds
    if not good.any():
        return replace(found, rounds=rounds)
    taken = rows[good]
    theta, slopes = of_levels(form, ended.theta[good])
    points, value, gradient, inverse = (a.copy() for a in (found.theta, found.value, found.gradient, found.metric))
    points[taken], value[taken] = theta, ended.value[good]
    gradient[taken] = np.abs(restrict(taken)(theta)[1]).max(axis=1, initial=0.0)
    inverse[taken] = np.einsum("rpq,rqs,rts->rpt", slopes, ended.metric[good], slopes)
    return Minimum(points, value, gradient, inverse, rounds)


def _by_levels(form: SumOfPowers, evaluate: Evaluate) -> Evaluate:
    """Return the function of the coordinates; infinite where they have no floor."""

    def at(points: Array) -> tuple[Array, Array]:
        theta, slopes = of_levels(form, points)
        bad = ~(np.isfinite(theta).all(axis=1) & np.isfinite(slopes).all(axis=(1, 2)))
        theta[bad], slopes[bad] = 0.0, 0.0
        value, gradient = evaluate(theta)
        value[bad] = np.inf
        return value, np.einsum("rp,rpq->rq", gradient, slopes)

    return at
