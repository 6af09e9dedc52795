"""Newton's steps on many independent rows at once: the last digits of minima that BFGS has found.

A line search that looks at values can tell minima apart to half of the digits of a number only, and where it stops
depends on rounding, so on the machine. Newton's method looks for the zero of the gradient and knows it to all digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.estimation.optimizer import Array, Evaluate, Hessian, Mask, Minimum, Restrict

ROUNDS, HALVINGS = 12, 6
STILL = 1e-8
"""A step that moves nothing by more than this, in logs and exponents, is the last: the next would be its square."""
FLAT = 1e-13
"""Directions whose curvature, scaled, is below this share of the largest are flat: nothing moves along them."""
RISE, ROUNDED = 1e-13, 1e-11
"""By what share a value may rise where the gradient falls, and the same where the fall foreseen is less than that, too:
what the value then does is rounding. Logs of losses are known to 1e-16 or to four times that, by the processor, and of
residuals, which are a thousandth of them, that is up to 1e-12 of each.
"""
WIDE = 2.0
"""No log-constant moves by more than e^2 in one step."""
PATIENCE, LAST = 300, 3000
"""Damped steps of a row at most, and where the best of the rows needs more."""
LIGHTEST, STUCK = 1e-15, 1e6
"""The least damping, as a share of the largest curvature, and that of a row which is stuck."""


def refine(restrict: Restrict, hessian: Hessian, found: Minimum) -> Minimum:
    """Return the minima (R, q) after Newton's steps; a row takes none that raises its value or keeps its gradient.

    `restrict(index)` returns the function of these rows and `hessian(index, point)` their second derivatives (r, q, q).
    """
    every = np.arange(len(found.theta))
    theta = found.theta.copy()
    value, gradient = restrict(every)(theta)
    index = every[np.isfinite(value)]
    for _ in range(ROUNDS):
        if not len(index):
            break
        step, inverse = _steps(hessian(index, theta[index]), gradient[index])
        taken = _taken(restrict(index), _Row(theta[index], value[index], gradient[index]), step, inverse)
        theta[index], value[index], gradient[index] = taken.theta, taken.value, taken.gradient
        index = index[taken.moved & (np.abs(step).max(axis=1) > STILL)]
    return replace(found, theta=theta, value=value, gradient=np.abs(gradient).max(axis=1, initial=0.0))


@dataclass
class _Row:
    """Where rows stand, and which of them took a step."""

    theta: Array
    value: Array
    gradient: Array

    def __post_init__(self) -> None:
        self.moved: Mask = np.zeros(len(self.theta), dtype=bool)


def _steps(hessian: Array, gradient: Array) -> tuple[Array, Array]:
    """Return Newton's steps (r, q), downhill along every axis of the Hessian, and its positive inverse (r, q, q)."""
    values, axes, size = _axes(hessian)
    values = np.abs(values)
    inverse = np.where(values > FLAT * values.max(axis=1, keepdims=True), 1.0 / np.maximum(values, 1e-300), 0.0)
    full = np.einsum("rpk,rk,rqk->rpq", axes, inverse, axes) / (size[:, :, None] * size[:, None, :])
    step = -np.einsum("rpq,rq->rp", full, gradient)
    step *= (WIDE / np.abs(step).max(axis=1, initial=WIDE))[:, None]
    return step, full


def _axes(hessian: Array) -> tuple[Array, Array, Array]:
    """Return the eigenvalues (r, q) and axes (r, q, q) of the scaled Hessian, and the sizes (r, q) it was scaled by."""
    size = np.sqrt(np.maximum(np.abs(np.einsum("rpp->rp", hessian)), 1e-300))
    size = np.maximum(size, 1e-8 * size.max(axis=1, keepdims=True))
    scaled = np.nan_to_num(hessian / (size[:, :, None] * size[:, None, :]), posinf=0.0, neginf=0.0)
    values, axes = np.linalg.eigh(scaled)
    return values, axes, size


def _taken(evaluate: Evaluate, at: _Row, step: Array, inverse: Array) -> _Row:
    """Take the steps, halved until the value falls, or the gradient does where the value no longer tells."""
    before = np.einsum("rp,rpq,rq->r", at.gradient, inverse, at.gradient)
    value0 = at.value.copy()
    rise = np.where(before > ROUNDED * np.abs(value0), RISE, ROUNDED) * np.abs(value0)
    share = np.ones(len(step))
    theta0 = at.theta.copy()
    for _ in range(HALVINGS):
        trial = theta0 + share[:, None] * step
        value, gradient = evaluate(trial)
        after = np.einsum("rp,rpq,rq->r", gradient, inverse, gradient)
        falls = value <= value0 - 1e-4 * share * before
        level = (value <= value0 + rise) & (after < 0.9 * before)
        good = ~at.moved & (falls | level)
        at.theta[good], at.value[good], at.gradient[good] = trial[good], value[good], gradient[good]
        at.moved |= good
        share = np.where(at.moved, share, 0.5 * share)
        if at.moved.all():
            break
    return at


def descend(restrict: Restrict, hessian: Hessian, found: Minimum, tolerance: Array, rounds: int = PATIENCE) -> Minimum:
    """Return the minima (R, q) after damped Newton's steps, along valleys whose bends and corners end longer ones.

    The damping falls where a step does what its parabola foresees and rises where the value does (Levenberg and
    Marquardt). A row is done below its `tolerance` (R,), or where no step lowers it; no row ends above where it began.
    """
    every = np.arange(len(found.theta))
    theta = found.theta.copy()
    value, gradient = restrict(every)(theta)
    damping = np.full(len(theta), 1e-3)
    index = every[np.isfinite(value)]
    for _ in range(rounds):
        index = index[(np.abs(gradient[index]).max(axis=1, initial=0.0) > tolerance[index]) & (damping[index] < STUCK)]
        if not len(index):
            break
        step, foreseen = _damped(hessian(index, theta[index]), gradient[index], damping[index])
        trial = theta[index] + step
        after, slope = restrict(index)(trial)
        fell = value[index] - after
        good = fell > 0.0
        rows = index[good]
        theta[rows], value[rows], gradient[rows] = trial[good], after[good], slope[good]
        share = fell / np.maximum(foreseen, 1e-300)
        damping[index] *= np.where(share > 0.75, 0.2, np.where(share > 0.25, 1.0, 4.0))
        damping[index] = np.maximum(damping[index], LIGHTEST)
    return replace(found, theta=theta, value=value, gradient=np.abs(gradient).max(axis=1, initial=0.0))


def _damped(hessian: Array, gradient: Array, damping: Array) -> tuple[Array, Array]:
    """Return damped steps (r, q), downhill along every axis, and by how much each lowers its parabola."""
    values, axes, size = _axes(hessian)
    along = np.einsum("rpk,rp->rk", axes, gradient / size)
    bend = np.abs(values) + (damping * np.abs(values).max(axis=1))[:, None]
    move = -along / np.maximum(bend, 1e-300)
    step = np.einsum("rpk,rk->rp", axes, move) / size
    shorter = WIDE / np.abs(step).max(axis=1, initial=WIDE)
    move *= shorter[:, None]
    foreseen = -(along * move).sum(axis=1) - 0.5 * (values * move**2).sum(axis=1)
    return step * shorter[:, None], foreseen
