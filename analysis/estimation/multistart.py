"""The batched engine: many starts, resamples or fixed constants are solved at once, as rows of one array.

Projected grid over the exponents (the other constants are linear: solved for), then batched BFGS, and Newton's steps at
the end. The objective given back is without what decides among equals (see analysis.estimation.fit_problem).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from analysis.estimation import bounds, exchange, levels, newton, objectives, settled
from analysis.estimation.constraints import Constraint
from analysis.estimation.fit_problem import Problem, by_rows, curvature, decided, evaluate
from analysis.estimation.optimizer import ROUNDS, Array, Evaluate, Index, Minimum, minimise, resumed
from analysis.values.blocks import Basin, Optimizer

CHUNK, CELLS, CACHED = 250, 1_000_000, 400_000
"""Resamples that are solved at once; of more cells, resamples x rows, as many as a processor's cache holds."""
STARTS, START_ROWS = 8, 5_000
RESAMPLE_TOLERANCE = 1e-6
LEVEL = 1e-7
"""A row whose gradient, over its largest possible one, is above this has not arrived."""
CONVERGED = 1e-6
"""The same of a fit that has converged."""
RIVALS = 4
METHOD = "projected grid over the exponents, then batched BFGS with analytic gradients"


@dataclass(frozen=True)
class PointFit:
    """The best row of a multi-start: internal constants (p,), inverse Hessian in z (q, q), and the evidence.

    `minima` are all rows of the multi-start, in the order of their starts.
    """

    theta: Array
    constants: Array
    objective: float
    metric: Array
    evidence: Optimizer
    minima: Minimum | None = None


def starts_of(p: Problem, count: int = STARTS) -> Array:
    """Return `count` distinct starts theta (count, p), the best first, from the form's candidates.

    Of very many rows, some drawn at random choose the starts; what is polished from there is fitted to all of them.
    """
    if p.y.size > START_ROWS:
        some = np.sort(np.random.default_rng(0).choice(p.y.size, START_ROWS, replace=False))
        p = replace(p, x=p.x[:, some], y=p.y[some])
    found = p.form.candidates(p.x, p.y)
    theta, scores = found.theta, found.scores
    if p.constraint.matrix is not None or scores is None:
        theta = p.expanded(p.constraint.reduce(theta))
        chunks = [p.constraint.reduce(theta[i : i + CHUNK]) for i in range(0, len(theta), CHUNK)]
        scores = np.concatenate([evaluate(p, z)[0] for z in chunks])
    apart = theta if found.apart is None else found.apart
    return theta[_spread(apart, scores, count)]


def _spread(apart: Array, scores: Array, count: int) -> list[int]:
    """Return the indices of the best scores that differ by at least a fifth from those chosen before."""
    chosen: list[int] = []
    far = np.ones(len(scores), dtype=bool)
    for index in np.argsort(scores, kind="stable"):
        if far[index]:
            chosen.append(int(index))
            far &= np.abs(apart - apart[index]).max(axis=1) > 0.2
        if len(chosen) == count:
            break
    return chosen


def solve(
    p: Problem,
    starts: Array,
    *,
    metric: Array | None = None,
    weights: Array | None = None,
    y: Array | None = None,
    tolerance: float = 1e-9,
    held: Constraint | None = None,
) -> Minimum:
    """Minimise from every row of `starts` (R, p); `weights` and `y` are (R, n).

    `held` takes the place of the problem's constraint, also with another one for each row.
    """
    held = p.constraint if held is None else held
    z = held.reduce(starts)
    if metric is None:
        metric = curvature(p, z, weights, y, held)
    total = np.full(len(starts), float(p.y.size)) if weights is None else weights.sum(axis=1)

    def restrict(index: Index) -> Evaluate:
        whole = len(index) == len(starts)
        w = weights if weights is None or whole else weights[index]
        target = p.y if y is None else y if whole else y[index]
        rows = held if whole else held.take(index)
        return lambda point: evaluate(p, point, w, target, rows)

    limit = tolerance * p.loss.scale * total
    form = p.form
    if weights is not None or y is not None or held.matrix is not None or not levels.has_levels(form):
        found = minimise(restrict, z, metric, limit)
        return replace(found, theta=held.expand(found.theta))
    first = minimise(restrict, z, metric, limit, rounds=levels.BEFORE)
    found = levels.search(form, restrict, first, lambda rows: curvature(p, first.theta[rows]), limit)
    return resumed(restrict, found, levels.ARRIVED * limit, rounds=ROUNDS - levels.BEFORE)


def refined(p: Problem, found: Minimum, weights: Array | None = None, y: Array | None = None) -> Minimum:
    """Return the minima to all their digits, by Newton's steps."""
    restrict, hessian = by_rows(p, weights, y)
    inner = newton.refine(restrict, hessian, replace(found, theta=p.constraint.reduce(found.theta)))
    return replace(inner, theta=p.expanded(inner.theta))


def lone(p: Problem, found: Minimum, weights: Array | None = None, y: Array | None = None) -> Minimum:
    """Return the minima with the value of the objective alone, without what decides among equals."""
    return replace(found, value=evaluate(p, p.constraint.reduce(found.theta), weights, y)[0])


def fit_point(p: Problem, starts: int = STARTS) -> PointFit:
    """Return the best of many starts, with the share that agrees and the basins that were found.

    Of minima that are equal (see settled.EQUAL) the one with the constants nearest to zero, as they are searched, is
    taken; of two that differ by an exchange of terms alone that of :mod:`analysis.estimation.exchange`. A floor that
    falls to 0 and an exponent that rises without an end are told as :mod:`analysis.estimation.bounds` says.
    """
    on = decided(p)
    begun = _begun(p, starts)
    found = settled.settled(on, _searched(on, begun), begun, _searched)
    found = exchange.oriented(p, found)
    best = settled.chosen(found)
    found = lone(p, found)
    constants = p.form.natural(found.theta, p.centres)
    gradient = float(found.gradient[best] / (p.loss.scale * p.y.size))
    agree = settled.same(found.value, found.value[best]) | (found.value <= found.value[best] + 1e-15 * p.y.size)
    evidence = Optimizer(
        METHOD,
        len(begun),
        float(agree[: len(begun)].mean()),
        gradient,
        bool(gradient < CONVERGED),
        _basins(found, constants, p.form.names, len(begun), _steepest(p)),
    )
    value, metric = float(found.value[best]), found.metric[best]
    return PointFit(found.theta[best], constants[best], value, metric, evidence, found)


def _begun(p: Problem, starts: int) -> Array:
    """Return the starts (R, p); of a loss with many minima, the lowest of which few starts find, Huber's law too."""
    begun = starts_of(p, starts)
    if not p.loss.redescending:
        return begun
    return np.concatenate((begun, fit_point(replace(p, loss=objectives.Huber()), starts).theta[None]))


def _searched(p: Problem, starts: Array) -> Minimum:
    """Return the minima from every row of `starts` (R, p), to all their digits."""
    return refined(p, polished(p, solve(p, starts)))


def polished(
    p: Problem, found: Minimum, weights: Array | None = None, y: Array | None = None, again: int = 3
) -> Minimum:
    """Return the minima after further searches, with a new metric, from the rows whose gradient is not yet zero.

    The long curved valleys of laws with many constants wear out a metric that was built on the way; and a constant that
    falls to its bound is followed until nothing more comes of it, else where it stops would depend on rounding.
    """
    total = np.full(len(found.theta), float(p.y.size)) if weights is None else weights.sum(axis=1)
    limit = LEVEL * p.loss.scale * total
    for _ in range(again):
        rows = np.flatnonzero(found.gradient > limit)
        if not len(rows):
            break
        w, target = (None if a is None else a[rows] for a in (weights, y))
        z = p.constraint.reduce(found.theta[rows])
        more = solve(p, found.theta[rows], metric=curvature(p, z, w, target), weights=w, y=target)
        better = more.value <= found.value[rows]
        for name in ("theta", "value", "gradient", "metric"):
            getattr(found, name)[rows[better]] = getattr(more, name)[better]
        if not better.any():
            break
    return found


def _steepest(p: Problem) -> float:
    """Return the gradient above which a search has stopped on a slope."""
    return CONVERGED * p.loss.scale * p.y.size


def _basins(
    found: Minimum, constants: Array, names: tuple[str, ...], starts: int, steepest: float
) -> tuple[Basin, ...]:
    """Return the distinct minima, the best first; values within 1e-6 of each other are one.

    Those besides the minima of the `starts`, which come first, were looked for in other laws: no start ended there. But
    for the best, a search that stopped on a slope, its gradient above `steepest`, found none: how far it came is up to
    rounding.
    """
    basins: list[Basin] = []
    values = found.value
    left = [i for i in np.argsort(values, kind="stable") if np.isfinite(values[i])]
    while left:
        lead = left[0]
        near = [i for i in left if settled.same(values[i], values[lead])]
        params = {name: float(value) for name, value in zip(names, constants[lead], strict=True)}
        share = sum(int(i) < starts for i in near) / starts
        if not basins or (found.gradient[near] <= steepest).any():
            basins.append(Basin(float(values[lead]), share, params))
        left = [i for i in left if i not in near]
    return tuple(basins)


def fit_many(
    p: Problem, start: PointFit, *, weights: Array | None = None, y: Array | None = None, workers: int = 1
) -> Minimum:
    """Return a minimum for every row of resampling `weights` (R, n) or of log losses `y` (R, n).

    Rows are solved in fixed chunks, so that the numbers do not depend on `workers` (threads). Where the multi-start
    found several minima of nearly the same objective, every row starts from each of them and keeps the lowest.
    """
    given = weights if weights is not None else y
    assert given is not None, "fit_many needs weights or y"

    size = CHUNK if CHUNK * p.y.size <= CELLS else max(1, CACHED // p.y.size)

    def chunk(begin: int) -> Minimum:
        rows = slice(begin, min(begin + size, len(given)))
        w, target = (None if a is None else a[rows] for a in (weights, y))
        found = [
            solve(
                on, np.broadcast_to(theta, (rows.stop - rows.start, theta.size)), metric=metric, weights=w, y=target,
                tolerance=RESAMPLE_TOLERANCE,
            )
            for theta, metric in begins_at
        ]  # fmt: skip
        minima = refined(on, _lowest(found), w, target)
        if (minima.gradient > LEVEL * on.loss.scale * on.y.size).any():
            minima = refined(on, polished(on, minima, w, target), w, target)
        return lone(p, replace(minima, theta=bounds.levelled(p, bounds.grounded(p, minima.theta))), w, target)

    on = decided(p)
    begins_at = _rivals(start, _steepest(on))
    begins = range(0, len(given), size)
    if workers <= 1:
        parts = [chunk(b) for b in begins]
    else:
        with ThreadPoolExecutor(workers) as pool:
            parts = list(pool.map(chunk, begins))
    return Minimum(
        np.concatenate([part.theta for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.gradient for part in parts]),
        np.concatenate([part.metric for part in parts]),
        max(part.rounds for part in parts),
    )


def _rivals(start: PointFit, steepest: float) -> list[tuple[Array, Array]]:
    """Return theta and metric of the best minimum, and of others whose objective is within settled.RIVAL of it.

    Where a search has stopped on a slope, its gradient above `steepest`, is no minimum: in a valley without an end it
    would be followed for hundreds of rounds with every resample.
    """
    out = [(start.theta, start.metric)]
    found = start.minima
    if found is None or len(start.evidence.basins) < 2:
        return out
    seen = [start.objective]
    for i in np.argsort(found.value, kind="stable"):
        value = float(found.value[i])
        near = np.isfinite(value) and value <= start.objective + settled.RIVAL * abs(start.objective)
        near = near and found.gradient[i] <= steepest
        if near and not any(settled.same(np.array(max(value, v)), np.array(min(value, v))) for v in seen):
            seen.append(value)
            out.append((found.theta[i], found.metric[i]))
        if len(out) == RIVALS:
            break
    return out


def _lowest(found: Sequence[Minimum]) -> Minimum:
    """Return each row's lowest minimum."""
    if len(found) == 1:
        return found[0]
    best = np.argmin([f.value for f in found], axis=0)
    rows = np.arange(len(best))
    theta, value, gradient, metric = (
        np.stack([getattr(f, name) for f in found])[best, rows] for name in ("theta", "value", "gradient", "metric")
    )
    return Minimum(theta, value, gradient, metric, max(f.rounds for f in found))
