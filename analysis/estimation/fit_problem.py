"""What is fitted: the summed objective of a law, its gradient and its curvatures, of many rows of constants at once.

Objective of a row, always summed: sum_i w_i rho(ln f(x_i; theta) - ln loss_i). Resampling enters as weights, so no data
are copied. Fixed and tied constants are linear equations in `theta`: what is searched is the space that they leave, z.

Many laws can have one objective: between two rows that pull to both sides, Huber's loss and L1 are level. Of these the
one with the least sum of squared residuals is taken: what is minimised is the objective plus TIE times that sum, so
small that it decides only among equals. So the answer does not depend on rounding: neither on the machine nor on the
order of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.estimation.constraints import FREE, Constraint, constraint
from analysis.estimation.objectives import Linear, Loss
from analysis.estimation.optimizer import Array, Evaluate, Hessian, Index, Restrict
from analysis.laws.base import Bent, Form

NEAR = 1e-5
"""Step of the central differences, in logs and exponents."""
CACHED = 400_000
"""Rows x constants moved x data whose gradients are looked at at once: as many as a processor's cache holds."""
TIE = 1e-3
"""Pull of the sum of squares beside the objective's own largest, at a residual as large as the target's whole range."""


@dataclass(frozen=True)
class Problem:
    """What is fitted: logs `x` (k, n) less their `centres` (k,), ln target `y` (n,), form, loss, constraint.

    With `plain`, residuals are differences of the values instead of their logs'.
    """

    form: Form
    x: Array
    centres: Array
    y: Array
    loss: Loss
    constraint: Constraint = FREE
    plain: bool = False
    tie: float = 0.0

    @property
    def free(self) -> int:
        """The number of constants that are fitted."""
        matrix = self.constraint.matrix
        return len(self.form.names) if matrix is None else int(matrix.shape[-1])

    def expanded(self, z: Array) -> Array:
        """Return theta (R, p) of the searched z (R, q)."""
        return self.constraint.expand(z)


def problem(
    form: Form,
    columns: Sequence[Array],
    losses: Array,
    loss: Loss,
    *,
    fix: Mapping[str, float] | None = None,
    tie: Mapping[str, str] | None = None,
    plain: bool = False,
) -> Problem:
    """Return the problem of fitting `form` to positive `columns` (in the order of form.inputs) and target values.

    `fix` holds constants at values and `tie` at other constants, by name. Raises ValueError where these make no sense.
    """
    logs = np.log(np.stack([np.asarray(c, dtype=np.float64) for c in columns]))
    centres = form.centre(logs)
    y = np.log(np.asarray(losses, dtype=np.float64))
    plain = plain or isinstance(loss, Linear)
    return Problem(form, logs - centres[:, None], centres, y, loss, constraint(form, centres, fix, tie), plain)


def decided(p: Problem) -> Problem:
    """Return the problem in which least squares decide among laws of equal objectives; its weight is of the data alone.

    Only losses that rise in straight lines need it; it moves no minimum that is one by more than its weight does.
    """
    if not p.loss.straight:
        return p
    target = np.exp(p.y) if p.plain else p.y
    return replace(p, tie=TIE * p.loss.scale / max(float(np.ptp(target)), 1e-12))


def evaluate(
    p: Problem, z: Array, weights: Array | None = None, y: Array | None = None, held: Constraint | None = None
) -> tuple[Array, Array]:
    """Return the summed objective (R,) and its gradient by z (R, q); where it overflows, infinity and no gradient."""
    held = p.constraint if held is None else held
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_value, pull = p.form.log_value_and_pull(held.expand(z), p.x)
        total, psi = _summed(p, log_value, p.y if y is None else y, weights)
        gradient = held.pull(pull(psi))
    finite = np.isfinite(gradient)
    if not (finite.all() and np.isfinite(total).all()):
        bad = ~(np.isfinite(total) & finite.all(axis=1))
        total[bad], gradient[bad] = np.inf, 0.0
    return total, gradient


def _summed(p: Problem, log_value: Array, y: Array, weights: Array | None) -> tuple[Array, Array]:
    """Return the objective (R,) and its derivative by ln predicted (R, n)."""
    value = np.exp(log_value) if p.plain else None
    residual = log_value - y if value is None else value - np.exp(y)
    total, psi = p.loss.summed(residual, weights)
    if p.tie:
        held = residual if weights is None else residual * weights
        total, psi = total + 0.5 * p.tie * (residual * held).sum(axis=1), psi + p.tie * held
    return total, psi if value is None else psi * value


def residuals(p: Problem, theta: Array, y: Array | None = None) -> Array:
    """Return observed less predicted (R, n), of logs unless the problem is plain: errors to be added to a fit."""
    log_value, target = p.form.log_value(theta, p.x), p.y if y is None else y
    return np.exp(target) - np.exp(log_value) if p.plain else target - log_value


def curvature(
    p: Problem, z: Array, weights: Array | None = None, y: Array | None = None, held: Constraint | None = None
) -> Array:
    """Return the inverse (R, q, q) of the Gauss-Newton Hessian of the objective at z, each residual by its own pull."""
    held = p.constraint if held is None else held
    theta, target = held.expand(z), p.y if y is None else y
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        slopes = held.pull_rows(p.form.jacobian(theta, p.x))
        log_value = p.form.log_value(theta, p.x)
        _, psi = _summed(p, log_value, target, weights)
        gap = log_value - target
        pull = np.where(np.abs(gap) > 1e-12, psi / np.where(np.abs(gap) > 1e-12, gap, 1.0), 0.0)
    slopes, pull = np.nan_to_num(slopes, posinf=0.0, neginf=0.0), np.nan_to_num(np.abs(pull), posinf=0.0)
    hessian = _squared(slopes, np.maximum(pull, 1e-3 * pull.max(axis=1, keepdims=True)))
    size = np.sqrt(np.maximum(np.einsum("rpp->rp", hessian), 1e-30))
    size = np.maximum(size, 1e-4 * size.max(axis=1, keepdims=True, initial=0.0))
    scaled = hessian / (size[:, :, None] * size[:, None, :]) + 1e-6 * np.eye(z.shape[1])
    return np.asarray(np.linalg.inv(scaled) / (size[:, :, None] * size[:, None, :]))


def hessian(p: Problem, z: Array, weights: Array | None = None, y: Array | None = None) -> Array:
    """Return the second derivatives (R, q, q) of the objective by z (R, q).

    Exact in the residuals, so that the corners of Huber's loss are where they are.
    """
    held, target = p.constraint, p.y if y is None else y
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        theta = held.expand(z)
        log_value = p.form.log_value(theta, p.x)
        _, psi = _summed(p, log_value, target, weights)
        value = np.exp(log_value) if p.plain else np.ones_like(log_value)
        residual = value - np.exp(target) if p.plain else log_value - target
        own, mixed = p.loss.bend(residual, weights)
        own = own + p.tie * (np.ones_like(residual) if weights is None else weights)
        own = own * value**2 + (psi if p.plain else 0.0)
        jacobian = p.form.jacobian(theta, p.x)
        slopes = held.pull_rows(jacobian)
        out = _squared(slopes, own)
        if mixed is not None:
            pulled = np.einsum("rnp,rn->rp", slopes, mixed * value)
            out -= pulled[:, :, None] * pulled[:, None, :]
        out += _bend(p, z, psi, jacobian)
    return np.asarray(np.nan_to_num(0.5 * (out + out.transpose(0, 2, 1)), posinf=0.0, neginf=0.0))


def by_rows(p: Problem, weights: Array | None = None, y: Array | None = None) -> tuple[Restrict, Hessian]:
    """Return the objective and its second derivatives as functions of some rows by number, each with its own data."""

    def of(rows: Array | None, index: Index) -> Array | None:
        return None if rows is None else rows[index]

    def restrict(index: Index) -> Evaluate:
        w, target = of(weights, index), of(y, index)
        return lambda point: evaluate(p, point, w, target)

    def second(index: Index, point: Array) -> Array:
        return hessian(p, point, of(weights, index), of(y, index))

    return restrict, second


def _bend(p: Problem, z: Array, psi: Array, jacobian: Array | None = None) -> Array:
    """Return what the law itself bends (R, q, q) at pulls `psi` (R, n): exact, or the difference of its gradient."""
    held = p.constraint
    if isinstance(p.form, Bent):
        return held.pull_both(p.form.bend(held.expand(z), p.x, psi, jacobian))
    count, width = z.shape
    sides = NEAR * np.concatenate((np.eye(width), -np.eye(width)))
    size = max(1, CACHED // (len(sides) * p.y.size))
    parts = []
    for i in range(0, count, size):
        around = held.expand((z[i : i + size, None] + sides).reshape(-1, width))
        pull = p.form.log_value_and_pull(around, p.x)[1]
        ends = held.pull(pull(np.repeat(psi[i : i + size], len(sides), axis=0))).reshape(-1, len(sides), width)
        parts.append((ends[:, :width] - ends[:, width:]) / (2.0 * NEAR))
    return np.concatenate(parts)


def _squared(slopes: Array, weights: Array) -> Array:
    """Return the weighted sums (R, q, q) of the products of slopes (R, n, q)."""
    return np.asarray(np.matmul((slopes * weights[:, :, None]).transpose(0, 2, 1), slopes))
