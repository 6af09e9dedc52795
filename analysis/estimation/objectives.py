"""What is summed over residuals: Huber, Student-t, L1, squared, linear; each with the likelihood that it stands for.

Residuals are ln predicted - ln observed, or plain differences where a fit says so. `scale` is a residual's largest (or
typical) pull, to which gradients are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.estimation.losses import LOSSES
from train.spec import calls

Array = NDArray[np.float64]


class Loss(Protocol):
    """A loss function of residuals (R, n)."""

    @property
    def text(self) -> str:
        """How fit.json names it."""

    @property
    def scale(self) -> float:
        """A residual's pull, to which gradients are compared."""

    @property
    def extra(self) -> int:
        """Constants that the likelihood has beyond the law's: a scale."""

    def summed(self, residual: Array, weights: Array | None) -> tuple[Array, Array]:
        """Return the objective (R,) and its derivative by the residuals (R, n)."""

    @property
    def straight(self) -> bool:
        """Whether it rises in straight lines: laws between rows that pull to both sides then have equal objectives."""

    @property
    def redescending(self) -> bool:
        """Whether large residuals pull less than smaller ones, so that laws of different rows may be minima."""

    def bend(self, residual: Array, weights: Array | None) -> tuple[Array, Array | None]:
        """Return d (R, n) and k (R, n): the second derivatives by the residuals are diag(d) - k k' (None: no k)."""

    def llf_of(self, objective: float, n: int) -> float:
        """Return the maximised log likelihood of n residuals with this summed objective, its scale fitted."""


class Elementwise:
    """Losses whose objective is a sum over single residuals."""

    extra = 1
    straight = False
    redescending = False

    def __call__(self, residual: Array) -> tuple[Array, Array]:
        """Return rho and its derivative."""
        raise NotImplementedError

    def second(self, residual: Array) -> Array:
        """Return the second derivative of rho."""
        raise NotImplementedError

    def bend(self, residual: Array, weights: Array | None) -> tuple[Array, Array | None]:
        """Return the second derivatives by the residuals (R, n), each by its own alone."""
        found = self.second(residual)
        return (found if weights is None else found * weights), None

    def summed(self, residual: Array, weights: Array | None) -> tuple[Array, Array]:
        """Return the objective (R,) and its derivative by the residuals (R, n)."""
        rho, psi = self(residual)
        if weights is not None:
            rho, psi = rho * weights, psi * weights
        return np.asarray(rho.sum(axis=1)), psi


@dataclass(frozen=True)
class Huber(Elementwise):
    """Huber's loss on log residuals: quadratic within `delta`, linear outside."""

    delta: float = 1e-3
    straight = True

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return f"huber(log residual, delta={self.delta:g})"

    @property
    def scale(self) -> float:
        """A residual's largest pull."""
        return self.delta

    def __call__(self, residual: Array) -> tuple[Array, Array]:
        """Return rho and its derivative."""
        psi = np.minimum(np.maximum(residual, -self.delta), self.delta)  # np.clip takes twice as long
        return psi * (residual - 0.5 * psi), psi

    def second(self, residual: Array) -> Array:
        """Return 1 within delta, 0 outside."""
        return np.asarray((np.abs(residual) <= self.delta).astype(np.float64))

    def llf_of(self, objective: float, n: int) -> float:
        """Return the log likelihood of exp(-rho/tau)/Z(tau), tau fitted: a normal core with exponential tails."""
        from scipy.optimize import minimize_scalar

        if objective == math.inf:
            return -math.inf
        objective = max(objective, 1e-30 * n)  # of an exact fit the likelihood has no end

        def negative(log_tau: float) -> float:
            tau = math.exp(max(log_tau, -100.0))
            core = math.sqrt(2 * math.pi * tau) * math.erf(self.delta / math.sqrt(2 * tau))
            tails = 2 * tau / self.delta * math.exp(-(self.delta**2) / (2 * tau))
            return objective / tau + n * math.log(core + tails)

        guess = math.log(max(objective / n, 1e-30))
        found = minimize_scalar(negative, bracket=(guess - 1, guess + 1), tol=1e-10)
        return -float(found.fun)


@dataclass(frozen=True)
class Squared(Elementwise):
    """Half the squared residual."""

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return "squared(log residual)"

    @property
    def scale(self) -> float:
        """A typical residual's pull."""
        return 1e-3

    def __call__(self, residual: Array) -> tuple[Array, Array]:
        """Return rho and its derivative."""
        return 0.5 * residual * residual, residual

    def second(self, residual: Array) -> Array:
        """Return 1."""
        return np.ones_like(residual)

    def llf_of(self, objective: float, n: int) -> float:
        """Return the normal log likelihood, its variance fitted."""
        return -0.5 * n * (math.log(2 * math.pi * max(2.0 * objective / n, 1e-300)) + 1.0)


@dataclass(frozen=True)
class Linear(Squared):
    """Half the squared difference of the values themselves, not of their logs: least squares on plain losses.

    Given the exponents of a sum of powers its other constants enter linearly (variable projection).
    """

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return "squared(residual)"


@dataclass(frozen=True)
class Absolute(Elementwise):
    """The absolute residual, rounded within `corner` of zero so that it has a derivative."""

    corner: float = 1e-6
    straight = True

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return "l1(log residual)"

    @property
    def scale(self) -> float:
        """A residual's largest pull."""
        return 1.0

    def __call__(self, residual: Array) -> tuple[Array, Array]:
        """Return rho and its derivative."""
        size = np.sqrt(residual * residual + self.corner**2)
        return size - self.corner, residual / size

    def second(self, residual: Array) -> Array:
        """Return the bend of the corner."""
        return np.asarray(self.corner**2 / (residual * residual + self.corner**2) ** 1.5)

    def llf_of(self, objective: float, n: int) -> float:
        """Return Laplace's log likelihood, its scale fitted."""
        return -n * (math.log(2.0 * max(objective / n, 1e-300)) + 1.0)


@dataclass(frozen=True)
class StudentT:
    """Minus the log likelihood of Student's t with `df` degrees of freedom, its scale fitted anew at every step."""

    df: float = 3.0
    extra = 1
    straight = False
    redescending = True

    @property
    def text(self) -> str:
        """How fit.json names it."""
        return f"student_t(log residual, df={self.df:g}, scale fitted)"

    @property
    def scale(self) -> float:
        """The pull of a residual of about 1 %."""
        return 100.0

    def summed(self, residual: Array, weights: Array | None) -> tuple[Array, Array]:
        """Return the objective (R,), without its constant, and its derivative at the fitted scale."""
        w = np.ones_like(residual) if weights is None else weights
        log_scale = self._log_scale(residual, w)
        variance = np.exp(2.0 * log_scale)[:, None]
        square = residual * residual
        rho = 0.5 * (self.df + 1.0) * np.log1p(square / (self.df * variance))
        total = (w * rho).sum(axis=1) + w.sum(axis=1) * log_scale
        return total, w * (self.df + 1.0) * residual / (self.df * variance + square)

    def bend(self, residual: Array, weights: Array | None) -> tuple[Array, Array | None]:
        """Return d and k (R, n): the second derivatives at a given scale, and what the scale gives way by."""
        w = np.ones_like(residual) if weights is None else weights
        variance = np.exp(2.0 * self._log_scale(residual, w))[:, None]
        square, wide = residual * residual, self.df * variance
        own = w * (self.df + 1.0) * (wide - square) / (wide + square) ** 2
        mixed = -2.0 * w * (self.df + 1.0) * residual * wide / (wide + square) ** 2
        scale = 2.0 * (self.df + 1.0) * (w * square * wide / (wide + square) ** 2).sum(axis=1, keepdims=True)
        return own, mixed / np.sqrt(np.maximum(scale, 1e-300))

    def pull(self, at: Array, residual: Array) -> Array:
        """Return the derivative (R, n) at residuals `at`, with the scale that the residuals (R, n) give."""
        variance = np.exp(2.0 * self._log_scale(residual, np.ones_like(residual)))[:, None]
        return np.asarray((self.df + 1.0) * at / (self.df * variance + at * at))

    def llf_of(self, objective: float, n: int) -> float:
        """Return the log likelihood at the fitted scale."""
        nu = self.df
        constant = math.lgamma(0.5 * (nu + 1)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
        return n * constant - objective

    def _log_scale(self, residual: Array, w: Array) -> Array:
        """Return ln of the scale of greatest likelihood (R,): Newton steps on sum w (nu+1) r^2/(nu s^2 + r^2) = sum w.

        The left side falls with s, from above sum w to 0, so the root is one; steps are cut to a factor of e.
        """
        square = np.maximum(residual * residual, 1e-30)
        total = w.sum(axis=1)
        u = 0.5 * np.log((w * square).sum(axis=1) / total)
        for _ in range(60):
            ratio = square / (self.df * np.exp(2.0 * u)[:, None] + square)
            excess = (self.df + 1.0) * (w * ratio).sum(axis=1) - total
            slope = -2.0 * (self.df + 1.0) * (w * ratio * (1.0 - ratio)).sum(axis=1)
            step = np.clip(-excess / np.minimum(slope, -1e-12 * total), -1.0, 1.0)
            u = np.maximum(u + step, -30.0)
            if np.abs(step).max() < 1e-9:
                break
        return np.asarray(u)


def location(loss: Loss, residual: Array) -> float:
    """Return the m at which the pulls of residual (n,) - m sum to zero: the mean for squares, Huber's location, ...

    Errors that are drawn anew have to be centred there, for that is the centre which the objective fits.
    """
    return float(locations(loss, residual[None])[0])


def locations(loss: Loss, residual: Array) -> Array:
    """Return the location (R,) of each row of residuals (R, n).

    The sum of pulls falls as m rises (for Student's t near its root), so the roots are found by bisection.
    """
    slack = 1e-12 * np.abs(loss.summed(residual, None)[1]).sum(axis=1)
    ends = []
    for least in (slack, -slack):  # where pulls balance over a stretch, as medians do, its middle is taken
        low, high = residual.min(axis=1), residual.max(axis=1)
        for _ in range(100):
            middle = 0.5 * (low + high)
            above = loss.summed(residual - middle[:, None], None)[1].sum(axis=1) > least
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        ends.append(0.5 * (low + high))
    return np.asarray(0.5 * (ends[0] + ends[1]))


def named(name: str | Loss, delta: float = 1e-3) -> Loss:
    """Return the loss function of this name; ValueError lists the names."""
    if not isinstance(name, str):
        if not hasattr(name, "straight"):
            raise ValueError(f"loss={calls.shown(name)} is not known; use one of {', '.join(LOSSES)}")
        return name
    if name not in LOSSES:
        raise ValueError(f"loss={name!r} is not known; use one of {', '.join(LOSSES)}")
    if not 0.0 < delta < math.inf:
        raise ValueError(f"delta={delta!r}: a positive number of log residual is needed, such as 0.001")
    found: type[Huber | Squared | Absolute | StudentT] = globals()[LOSSES[name]]
    return Huber(delta) if found is Huber else found()
