"""Whether the runs of one fit identify the exponent a of N*, without resamples: in a few words, why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.inference import covariance, distributions, identifiability
from analysis.inference.flat import flat
from analysis.inputs.dataset import one_ratio

if TYPE_CHECKING:
    from analysis.estimation.fit_problem import Problem
    from analysis.estimation.multistart import PointFit
    from analysis.inputs.dataset import Array, Rows

DRIFT = 0.02
"""Exponents that differ by more are not the same."""
CONFIDENCE = 0.95
GONE = 1e-6
"""A constant that moves the law by less than this share is of a term that is not there."""


def unidentified(p: Problem, point: PointFit, rows: Rows) -> str:
    """Return why these runs do not identify the exponent a of their fit; empty where they do, and where it is held.

    They do not where they are of one budget or of one ratio of tokens to parameters, the fit has not converged or is on
    a bound, a is outside of 0 to 1, its interval by the delta method covers most of that, or laws that fit equally well
    differ in it.
    """
    if _held(p, point):
        return ""
    if len(np.unique(rows.budget)) < 2:
        return "one budget"
    if one_ratio(rows.params, rows.tokens) is not None:
        return "one ratio of tokens to parameters"
    if not point.evidence.converged:
        return "the fit did not converge"
    return _bound(p, point) or _wide(p, point) or _equal(p, point)


def _of(p: Problem, theta: Array) -> Array:
    """Return the exponent a (R,) of internal constants (R, p); of a law without one, and where it is no number, NaN."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return p.form.derived(p.form.natural(theta, p.centres)).get("a", np.full(len(theta), np.nan))


def _held(p: Problem, point: PointFit) -> bool:
    """Return whether no free constant moves a: the form or what is fixed and tied gives it."""
    z = p.constraint.reduce(point.theta[None])
    steps = 0.01 * np.eye(z.shape[1])
    found = _of(p, p.expanded(np.concatenate((z, z + steps, z - steps))))
    return bool(np.ptp(found) < 1e-9)


def _bound(p: Problem, point: PointFit) -> str:
    """Return that a term is gone from the law: the others take its place."""
    pulls = np.abs(p.form.jacobian(point.theta[None], p.x)[0]).max(axis=0)
    free = range(len(pulls)) if p.constraint.matrix is None else p.constraint.free
    for i in free:
        floor = p.form.names[i] == getattr(p.form, "floor", "")
        if pulls[i] < (identifiability.FLOOR if floor else GONE):
            return f"{p.form.names[i]} is on its bound" if p.form.logs[i] else f"{p.form.names[i]} has no effect"
    return ""


def _wide(p: Problem, point: PointFit) -> str:
    """Return that a is no exponent of a best size, or that its interval says nothing."""
    value = float(_of(p, point.theta[None])[0])
    if not 0.0 < value < 1.0:
        return "it is outside of 0 to 1"
    steps = 1e-6 * np.maximum(1.0, np.abs(point.theta))
    upper, lower = (_of(p, point.theta + side * np.diag(steps)) for side in (1.0, -1.0))
    slope = (upper - lower) / (2.0 * steps)
    spread = float(np.sqrt(max(float(slope @ covariance.delta(p, point) @ slope), 0.0)))
    reach = spread * distributions.t_quantile(0.5 + CONFIDENCE / 2.0, max(p.y.size - p.free, 1))
    verdict = identifiability.ratio((value - reach, value + reach), "a")
    return "" if verdict.identified else "its interval covers most of 0 to 1"


def _equal(p: Problem, point: PointFit) -> str:
    """Return that laws which fit the runs equally well differ in a."""
    level = flat(p, point)
    if level is None:
        return ""
    ends = np.array([[end[name] for name in p.form.names] for end in (level.low, level.high)])
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = p.form.derived(ends)["a"]
    return "" if abs(high - low) <= DRIFT else "laws that fit equally well differ in it"
