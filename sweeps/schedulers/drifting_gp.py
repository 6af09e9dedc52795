"""A Gaussian process of a function on the unit cube that drifts as time goes on (Bogunovic et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

JITTER = 1e-8
"""Added to the diagonal of every kernel matrix, whose values are at most 1, so that it has a Cholesky factor."""


@dataclass(frozen=True)
class Kernel:
    """How alike a function is at two places and times, observations of it having variance 1.

    width: length scale of the squared exponential [sides of the unit cube]; forget: epsilon, by which the function's
    variance is renewed in a unit of time; noise: share of the observations' variance that is not the function's.
    ValueError where one makes no sense.
    """

    width: float
    forget: float
    noise: float

    def __post_init__(self) -> None:
        if self.width <= 0 or not 0 <= self.forget < 1 or not 0 <= self.noise < 1:
            raise ValueError(f"{self}: a width above zero, and shares of at least 0 and below 1 are needed")

    def between(self, x: Floats, t: Floats, other: Floats, then: Floats) -> Floats:
        """Return the covariances of the function at places x (n, d) and times t (n) with those others: (n, m)."""
        return (1 - self.noise) * _near(_squares(x, other), self.width) * _fresh(_apart(t, then), self.forget)


GRID = tuple(Kernel(*said) for said in product((0.1, 0.2, 0.4, 0.8), (0.01, 0.1, 0.4), (0.01, 0.1, 0.4)))
"""The kernels that :func:`likeliest` chooses from: unlike an optimizer's, its choice does not depend on rounding."""


class Posterior:
    """What observations y (n), of mean zero, at places x (n, d) and times t (n) say of the function."""

    def __init__(self, kernel: Kernel, x: Floats, t: Floats, y: Floats) -> None:
        self.kernel, self.x, self.t, self.y = kernel, x, t, y
        covariance = kernel.between(x, t, x, t) + (kernel.noise + JITTER) * np.eye(len(x))
        self._factor = np.linalg.cholesky(covariance)
        self._weights: Floats = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, y))

    def mean(self, x: Floats, t: Floats) -> Floats:
        """Return the means at places x (m, d) and times t (m)."""
        found: Floats = self.kernel.between(x, t, self.x, self.t) @ self._weights
        return found

    def variance(self, x: Floats, t: Floats) -> Floats:
        """Return the variances there, without the noise of an observation."""
        known = np.linalg.solve(self._factor, self.kernel.between(self.x, self.t, x, t))
        left: Floats = np.maximum(1 - self.kernel.noise - (known**2).sum(axis=0), 0.0)
        return left

    def expecting(self, x: Floats, t: Floats) -> Posterior:
        """Return what is known once observations at x and t turn out as expected: the same means, less variance."""
        y = np.concatenate([self.y, self.mean(x, t)])
        return Posterior(self.kernel, np.concatenate([self.x, x]), np.concatenate([self.t, t]), y)


def likelihoods(x: Floats, t: Floats, y: Floats) -> Floats:
    """Return the logarithm of the marginal likelihood of observations by each kernel of :data:`GRID` [nats]."""
    squares, apart = _squares(x, x), _apart(t, t)
    near = {width: _near(squares, width) for width in {kernel.width for kernel in GRID}}
    fresh = {forget: _fresh(apart, forget) for forget in {kernel.forget for kernel in GRID}}
    noise = np.array([kernel.noise for kernel in GRID])[:, None, None]
    alike = np.stack([near[kernel.width] * fresh[kernel.forget] for kernel in GRID])
    # With y as its last row, and a corner no smaller than it can need, the factor's last row is y made white.
    framed = np.empty((len(GRID), len(y) + 1, len(y) + 1))
    framed[:, :-1, :-1] = (1 - noise) * alike + (noise + JITTER) * np.eye(len(x))
    framed[:, -1, :-1] = framed[:, :-1, -1] = y
    framed[:, -1, -1] = 1 + y @ y / noise[:, 0, 0]
    factors = np.linalg.cholesky(framed)
    white, halves = factors[:, -1, :-1], np.log(np.diagonal(factors, axis1=1, axis2=2)[:, :-1]).sum(axis=1)
    found: Floats = -0.5 * (white**2).sum(axis=1) - halves - 0.5 * len(y) * np.log(2 * np.pi)
    return found


def likeliest(x: Floats, t: Floats, y: Floats) -> Kernel:
    """Return the kernel of :data:`GRID` that makes the observations most likely."""
    return GRID[int(np.argmax(likelihoods(x, t, y)))]


def _squares(x: Floats, other: Floats) -> Floats:
    found: Floats = ((x[:, None, :] - other[None]) ** 2).sum(axis=-1)
    return found


def _apart(t: Floats, then: Floats) -> Floats:
    found: Floats = np.abs(t[:, None] - then[None])
    return found


def _near(squares: Floats, width: float) -> Floats:
    found: Floats = np.exp(-0.5 * squares / width**2)
    return found


def _fresh(apart: Floats, forget: float) -> Floats:
    found: Floats = (1 - forget) ** (0.5 * apart)
    return found
