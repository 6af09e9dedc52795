"""Covariances without resampling: the delta method's and the cluster sandwich, for any loss function."""

from __future__ import annotations

import numpy as np

from analysis.estimation.fit_problem import Problem, residuals
from analysis.estimation.multistart import PointFit
from analysis.inputs.dataset import Array, Index

LEAST = 1e-100
"""The least mean slope of psi: with all residuals in the tails there is none, and a variance is huge, but a number."""


def delta(p: Problem, point: PointFit) -> Array:
    """Return the covariance (p, p) of theta of an M-estimator with independent residuals.

    (J'J)^-1 sum(psi^2)/(n-q) / mean(psi')^2, with the mean slope of psi measured over a normal bandwidth: Huber's psi
    with a small delta has no slope at most residuals. For squared residuals this is the textbook formula.
    """
    slopes, psi, steepness = _pieces(p, point)
    n, q = slopes.shape
    middle = float((psi**2).sum()) / max(n - q, 1) / steepness**2
    return _expanded(p, _inverse(slopes.T @ slopes) * middle)


def sandwich(p: Problem, point: PointFit, groups: Index) -> Array:
    """Return the covariance (p, p) of theta that holds where residuals of a group (n,) depend on each other.

    A^-1 B A^-1 with B summed over groups, and the usual factor G/(G-1) (n-1)/(n-q) for few groups.
    """
    slopes, psi, steepness = _pieces(p, point)
    n, q = slopes.shape
    _, number = np.unique(groups, return_inverse=True)
    count = int(number.max()) + 1
    scores = np.zeros((count, q))
    np.add.at(scores, number, slopes * psi[:, None])
    bread = _inverse(slopes.T @ slopes) / steepness
    factor = count / max(count - 1, 1) * (n - 1) / max(n - q, 1)
    return _expanded(p, bread @ (scores.T @ scores) @ bread * factor)


def _pieces(p: Problem, point: PointFit) -> tuple[Array, Array, float]:
    """Return the gradients by the free constants (n, q), psi (n,) and the mean slope of psi."""
    theta = point.theta[None]
    slopes = p.constraint.pull(p.form.jacobian(theta, p.x)[0])
    residual = residuals(p, theta)
    if p.plain:
        slopes = slopes * np.exp(p.form.log_value(theta, p.x)[0])[:, None]
    psi = p.loss.summed(residual, None)[1][0]
    middle = np.median(residual)
    spread = 1.4826 * float(np.median(np.abs(residual - middle))) or float(residual.std()) or 1e-12
    width = 1.06 * spread * residual.size**-0.2
    # A loss that fits its own scale keeps it: both ends are looked at beside the residuals as they are.
    upper, lower = (_pull_at(p, residual, residual + side * width) for side in (1.0, -1.0))
    return slopes, psi, max(float((upper - lower).mean()) / (2 * width), LEAST)


def _pull_at(p: Problem, residual: Array, at: Array) -> Array:
    """Return psi (n,) at other residuals, under the scale that the residuals themselves give."""
    from analysis.estimation.objectives import StudentT

    if isinstance(p.loss, StudentT):
        return np.asarray(p.loss.pull(at, residual)[0])
    return np.asarray(p.loss.summed(at, None)[1][0])


def _expanded(p: Problem, covariance: Array) -> Array:
    """Return the covariance of theta from that of the free constants."""
    matrix = p.constraint.matrix
    return covariance if matrix is None else matrix @ covariance @ matrix.T


def _inverse(matrix: Array) -> Array:
    """Return the inverse, through the scaled matrix; the pseudo-inverse where constants cannot be told apart."""
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    scaled = matrix / size[:, None] / size[None, :]
    return np.asarray(np.linalg.pinv(scaled, rcond=1e-14, hermitian=True) / size[:, None] / size[None, :])
