"""Laws that nothing tells apart, not even least squares: of these the one with the constants nearest to zero.

With a floor and two values of an input, the term of that input has a constant too many: a curve of laws fits the rows
to the last digit alike, and where a search ends on it is up to the processor.
"""

from __future__ import annotations

import numpy as np

from analysis.estimation import bounds, newton, ties
from analysis.estimation.fit_problem import Problem, decided, evaluate, hessian
from analysis.estimation.optimizer import Array, Index, Minimum

SINGULAR = 1e-9
"""Below this share of the largest a curvature is none."""
LIVE = 1e-6
"""A constant that pulls at no row by more than this share of the largest pull is of a term that is not there."""
LONGEST, SHORTEST = 0.5, 1e-9
"""How far a step goes at most, and the share of the constants below which it is the last."""
ROUNDS, HALVINGS = 100, 20


def nearest_to_zero(p: Problem, theta: Array) -> Array:
    """Return the law (p,) with the constants nearest to zero, as they are searched, among those as good as `theta`.

    It is looked for along level ground from `theta`, downhill in the distance from zero. Laws of which other rules say
    what is given stay: those of an input that never varies, and of a power at one end of an input alone.
    """
    if np.any(bounds.levelled(p, theta[None]) != theta) or bounds.spikes(p, theta):
        return theta
    z = p.constraint.reduce(theta[None])[0]
    slope, share = _slope(p, z), 1.0
    for _ in range(ROUNDS):
        if np.linalg.norm(slope) <= SHORTEST * (1.0 + np.linalg.norm(z)):
            break
        moved = _moved(p, z, -share * slope)
        if moved is None:
            break
        after = _slope(p, moved)
        change, bent = moved - z, after - slope
        share = float(change @ change) / max(float(change @ bent), 0.1 * float(change @ change))
        z, slope = moved, after
    return np.asarray(p.expanded(z[None])[0])


def axes(p: Problem, z: Array) -> tuple[Array, Array, Array]:
    """Return curvatures (m,), rising, their axes (m, q) in z, and the constants' pulls (q,) on ln target.

    Curvatures are those with the least squares that decide among equals. Constants are measured by their pulls, so that
    an axis is as long as what its terms differ by; those of a term that is not there have no axis.
    """
    slopes = p.constraint.pull(p.form.jacobian(p.expanded(z[None]), p.x)[0])
    reach = np.abs(slopes).max(axis=0)
    live = reach > LIVE * max(float(reach.max(initial=0.0)), 1e-300)
    bend = hessian(decided(p), z[None])[0][np.ix_(live, live)] / np.outer(reach[live], reach[live])
    values, vectors = np.linalg.eigh(bend)
    found = np.zeros((len(values), len(z)))
    found[:, live] = vectors.T / reach[live][None, :]
    return values, found, reach


def _slope(p: Problem, z: Array) -> Array:
    """Return the part (q,) of the constants that lies in directions without curvature; 0 where there are none."""
    values, along, _ = axes(p, z)
    level = along[values < SINGULAR * values.max(initial=0.0)]
    onto, _ = np.linalg.qr(level.T)
    return np.asarray(onto @ (onto.T @ z))


def _moved(p: Problem, z: Array, step: Array) -> Array | None:
    """Return constants (q,) as good as `z` and nearer to zero, a step or a part of it away; None without any."""
    step = step * min(1.0, LONGEST / float(np.linalg.norm(step)))
    best = float(evaluate(p, z[None])[0][0])
    for _ in range(HALVINGS):
        trial = _lowest(p, z + step)
        value = float(evaluate(p, trial[None])[0][0])
        if value <= best + ties.EQUAL * abs(best) and np.linalg.norm(trial) < np.linalg.norm(z):
            return trial
        step = 0.5 * step
    return None


def _lowest(p: Problem, z: Array) -> Array:
    """Return the constants (q,) of the minimum near `z`; directions without curvature are left alone."""

    def second(index: Index, point: Array) -> Array:
        return hessian(p, point)

    begun = Minimum(z[None], np.zeros(1), np.zeros(1), np.zeros((1, z.size, z.size)), 0)  # its theta alone is read
    return np.asarray(newton.refine(lambda index: lambda point: evaluate(p, point), second, begun).theta[0])
