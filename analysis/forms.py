"""The laws, as small classes: value, log-gradient, and the split into linear and nonlinear constants.

A form works on centred logs `x = ln(input) - centre` and internal constants `theta`: for a sum of powers these are the
logs of the coefficients at the centre, then the exponents. So the problem is well conditioned and coefficients
cannot become negative; a coefficient at its bound 0 is `theta -> -inf`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Pull = Callable[[Array], Array]
TINY = 1e-300


class Form(Protocol):
    """A law for the loss; shapes: R rows of constants, n runs, k inputs, p constants, q exponents, m coefficients."""

    @property
    def text(self) -> str:
        """The law as people write it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p constants, in the order of `natural`."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that the law reads: params, tokens, flops."""

    @property
    def exponents(self) -> int:
        """The number q of nonlinear constants."""

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return ln loss (R, n) for `theta` (R, p) at centred logs `x` (k, n)."""

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Pull]:
        """Return ln loss (R, n) and the map from weights (R, n) to the weighted sum of its gradients (R, p)."""

    def basis(self, exponents: Array, x: Array) -> Array:
        """Return the columns (G, n, m) in which the loss is linear, for fixed exponents (G, q)."""

    def assemble(self, exponents: Array, coefficients: Array) -> Array:
        """Return `theta` (G, p) from exponents (G, q) and coefficients (G, m) of the basis."""

    def natural(self, theta: Array, centres: Array) -> Array:
        """Return the constants (R, p) as people quote them, from `theta` (R, p) and the centres (k,)."""


@dataclass(frozen=True)
class SumOfPowers:
    """floor + sum of coefficient / input^exponent: E + A/N^alpha + B/D^beta, L_inf + a C^-alpha, and their like.

    `floor` is the name of the constant term, or "" for none; `powers` are (coefficient, input, exponent) names.
    """

    text: str
    floor: str
    powers: tuple[tuple[str, str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Constants: floor, coefficients, exponents."""
        head = (self.floor,) if self.floor else ()
        return (*head, *(c for c, _, _ in self.powers), *(e for _, _, e in self.powers))

    @property
    def inputs(self) -> tuple[str, ...]:
        """One column for each power."""
        return tuple(column for _, column, _ in self.powers)

    @property
    def exponents(self) -> int:
        """One exponent for each power."""
        return len(self.powers)

    def _terms(self, theta: Array, x: Array) -> list[Array]:
        """Return the summands: the floor (R, 1) if there is one, then the powers (R, n)."""
        head = 1 if self.floor else 0
        q = len(self.powers)
        terms = [np.exp(theta[:, :1])] if head else []
        for i in range(q):
            terms.append(np.exp(theta[:, head + i, None] - theta[:, head + q + i, None] * x[i]))
        return terms

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return ln of the sum."""
        return np.asarray(np.log(np.maximum(sum(self._terms(theta, x)), TINY)), dtype=np.float64)

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Pull]:
        """Return ln of the sum, and the weighted gradient: every term's share of the sum, times 1 or -x."""
        terms = self._terms(theta, x)
        value = np.maximum(sum(terms[1:], terms[0]), TINY)

        def pull(weights: Array) -> Array:
            scaled = weights / value
            head = 1 if self.floor else 0
            out = np.empty_like(theta)
            if head:
                out[:, 0] = terms[0][:, 0] * scaled.sum(axis=1)
            for i in range(len(self.powers)):
                share = scaled * terms[head + i]
                both = share @ np.stack((np.ones_like(x[i]), -x[i]), axis=1)
                out[:, head + i] = both[:, 0]
                out[:, head + len(self.powers) + i] = both[:, 1]
            return out

        return np.log(value), pull

    def basis(self, exponents: Array, x: Array) -> Array:
        """Return 1 and the powers at these exponents."""
        head = 1 if self.floor else 0
        out = np.ones((len(exponents), x.shape[1], head + len(self.powers)))
        for i in range(len(self.powers)):
            values, at = np.unique(exponents[:, i], return_inverse=True)
            out[:, :, head + i] = np.exp(-values[:, None] * x[i])[at]
        return out

    def assemble(self, exponents: Array, coefficients: Array) -> Array:
        """Return logs of the coefficients, then the exponents."""
        return np.concatenate((np.log(np.maximum(coefficients, TINY)), exponents), axis=1)

    def natural(self, theta: Array, centres: Array) -> Array:
        """Return floor, coefficients at input 1, exponents."""
        out = theta.copy()
        head, q = (1 if self.floor else 0), len(self.powers)
        out[:, head : head + q] += theta[:, head + q :] * centres
        with np.errstate(over="ignore"):
            out[:, : head + q] = np.exp(out[:, : head + q])
        return out


SURFACE = SumOfPowers("E + A/N^alpha + B/D^beta", "E", (("A", "params", "alpha"), ("B", "tokens", "beta")))
FRONTIER = SumOfPowers("L_inf + a*(C/reference_flops)^-alpha", "L_inf", (("a", "flops", "alpha"),))
FRONTIER_NO_FLOOR = SumOfPowers("a*(C/reference_flops)^-alpha", "", (("a", "flops", "alpha"),))
FORMS: dict[str, Form] = {"surface": SURFACE, "frontier": FRONTIER, "frontier_no_floor": FRONTIER_NO_FLOOR}
