"""Laws that are sums of powers, in which all but the exponents is linear: solved for on a grid of exponents."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.laws.base import TINY, Array, Candidates, Linked, Pull

GRID = {1: 32, 2: 32, 3: 12, 4: 7}
"""Values of each exponent on the grid, by the number of exponents."""
CACHED = 400_000
"""Exponents x rows of the grid that are looked at at once: as many as a processor's cache holds."""


@dataclass(frozen=True)
class SumOfPowers(Linked):
    """floor + sum of coefficient * product of input^-exponent: E + A/N^alpha + B/D^beta, L_inf + a C^-alpha, ...

    `floor` is the name of the constant term, or "" for none; `powers` are (coefficient, ((input, exponent), ...)); an
    exponent that is named twice is one constant. Internal constants: logs of floor and of the coefficients at the
    centre of the inputs, then the exponents; so the problem is well conditioned and no coefficient is negative.
    """

    name: str
    text: str
    floor: str
    powers: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    reference: str = ""
    target: str = "loss"
    optimum: tuple[str, str] | None = None
    """Names of the exponents of N and of D in E + A/N^alpha + B/D^beta, from which a and b follow."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Constants: floor, coefficients, exponents."""
        head = (self.floor,) if self.floor else ()
        return (*head, *(c for c, _ in self.powers), *self._exponents)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The columns, in the order of their first power."""
        return tuple(dict.fromkeys(column for _, parts in self.powers for column, _ in parts))

    @cached_property
    def _exponents(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e for _, parts in self.powers for _, e in parts))

    @cached_property
    def _parts(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each power, its (row of x, column of theta) pairs."""
        first = len(self.names) - len(self._exponents)
        return tuple(
            tuple((self.inputs.index(c), first + self._exponents.index(e)) for c, e in parts)
            for _, parts in self.powers
        )

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The numbers of the coefficient and of the exponent of each power, by its first input, among the constants."""
        head = 1 if self.floor else 0
        return tuple((head + i, parts[0][1]) for i, parts in enumerate(self._parts))

    @property
    def exponents(self) -> int:
        """The number of exponents: the nonlinear constants."""
        return len(self._exponents)

    @property
    def logs(self) -> tuple[bool, ...]:
        """Floor and coefficients are positive."""
        return tuple(name not in self._exponents for name in self.names)

    def centre(self, logs: Array) -> Array:
        """Return the means."""
        return np.asarray(logs.mean(axis=1))

    def link(self, centres: Array) -> tuple[Array, Array]:
        """Return the map to the logs of the coefficients at input 1."""
        matrix, head = np.eye(len(self.names)), 1 if self.floor else 0
        for i, parts in enumerate(self._parts):
            for row, column in parts:
                matrix[head + i, column] += centres[row]
        return matrix, np.zeros(len(self.names))

    def _terms(self, theta: Array, x: Array) -> list[Array]:
        """Return the summands: the floor (R, 1) if there is one, then the powers (R, n). Who calls minds overflow."""
        head = 1 if self.floor else 0
        logs = [theta[:, :1]] if head else []
        for i, parts in enumerate(self._parts):
            power = theta[:, head + i, None] - theta[:, parts[0][1], None] * x[parts[0][0]]
            for row, column in parts[1:]:
                power -= theta[:, column, None] * x[row]
            logs.append(power)
        return [np.exp(each) for each in logs]

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return ln of the sum."""
        with np.errstate(over="ignore"):  # a trial step may go far: infinity is its value, and it is not taken
            terms = self._terms(theta, x)
        return np.asarray(np.log(np.maximum(sum(terms), TINY)), dtype=np.float64)

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Pull]:
        """Return ln of the sum, and the weighted gradient: every term's share of the sum, times 1 or -x."""
        terms = self._terms(theta, x)
        value = np.maximum(sum(terms[1:], terms[0]), TINY)
        head = 1 if self.floor else 0

        def pull(weights: Array) -> Array:
            scaled = weights / value
            out = np.zeros(theta.shape)
            if head:
                out[:, 0] = terms[0][:, 0] * scaled.sum(axis=1)
            for i, parts in enumerate(self._parts):
                share = scaled * terms[head + i]
                out[:, head + i] = share.sum(axis=1)
                for row, column in parts:
                    out[:, column] -= share @ x[row]
            return out

        return np.log(value), pull

    def jacobian(self, theta: Array, x: Array) -> Array:
        """Return the gradients of ln of the sum (R, n, p)."""
        with np.errstate(over="ignore"):
            terms = self._terms(theta, x)
        value = np.maximum(sum(terms[1:], terms[0]), TINY)
        out = np.zeros((*value.shape, theta.shape[1]))
        head = 1 if self.floor else 0
        if head:
            out[:, :, 0] = terms[0] / value
        for i, parts in enumerate(self._parts):
            out[:, :, head + i] = terms[head + i] / value
            for row, column in parts:
                out[:, :, column] -= out[:, :, head + i] * x[row]
        return out

    def bend(self, theta: Array, x: Array, weights: Array, jacobian: Array | None = None) -> Array:
        """Return the weighted sums (R, p, p) of the second derivatives: terms' shares by what their logs hold twice."""
        slopes = self.jacobian(theta, x) if jacobian is None else jacobian
        out: Array = -np.matmul((slopes * weights[:, :, None]).transpose(0, 2, 1), slopes)
        head = 1 if self.floor else 0
        if head:
            out[:, 0, 0] += np.einsum("rn,rn->r", weights, slopes[:, :, 0])
        for i, parts in enumerate(self._parts):
            share = weights * slopes[:, :, head + i]
            held = [(head + i, np.ones(x.shape[1])), *((column, -x[row]) for row, column in parts)]
            for a, by_a in held:
                for b, by_b in held:
                    out[:, a, b] += share @ (by_a * by_b)
        return out

    def basis(self, exponents: Array, x: Array) -> Array:
        """Return the columns (G, n, m) in which the target is linear: 1 and the powers at exponents (G, q)."""
        head = 1 if self.floor else 0
        first = len(self.names) - self.exponents
        out = np.ones((len(exponents), x.shape[1], head + len(self.powers)))
        for i, parts in enumerate(self._parts):
            for row, column in parts:
                values, at = np.unique(exponents[:, column - first], return_inverse=True)
                out[:, :, head + i] *= np.exp(-values[:, None] * x[row])[at]
        return out

    def assemble(self, exponents: Array, coefficients: Array) -> Array:
        """Return `theta` (G, p): logs of the coefficients (G, m), then the exponents (G, q)."""
        return np.concatenate((np.log(np.maximum(coefficients, TINY)), exponents), axis=1)

    def candidates(self, x: Array, y: Array) -> Candidates:
        """Return the projected grid: for every combination of exponents the coefficients of least relative error."""
        axis = np.geomspace(0.02, 2.5, GRID[self.exponents])
        exponents = np.array(list(itertools.product(axis, repeat=self.exponents)))
        size = max(1, CACHED // y.size)
        parts = [self._normal_equations(exponents[i : i + size], x, y) for i in range(0, len(exponents), size)]
        gram, totals = (np.concatenate(part) for part in zip(*parts, strict=True))
        size = np.sqrt(np.einsum("gmm->gm", gram))
        scaled = gram / (size[:, :, None] * size[:, None, :]) + 1e-12 * np.eye(gram.shape[1])
        coefficients = np.linalg.solve(scaled, (totals / size)[:, :, None])[:, :, 0] / size
        # A negative constant is outside the law: such a start begins with a small share of the target instead.
        coefficients = np.maximum(coefficients, 1e-3 * np.sqrt(y.size) / size)
        # Squared relative error at these constants, from the normal equations: no need to look at the runs again.
        fitted = np.einsum("gm,gmk,gk->g", coefficients, gram, coefficients)
        scores = fitted - 2.0 * np.einsum("gm,gm->g", coefficients, totals)
        return Candidates(self.assemble(exponents, coefficients), scores, np.log(exponents))

    def _normal_equations(self, exponents: Array, x: Array, y: Array) -> tuple[Array, Array]:
        """Return the Gram matrices (G, m, m) of the columns over the target, and the columns' sums (G, m)."""
        basis = self.basis(exponents, x)
        basis *= np.exp(-y)[None, :, None]
        return np.matmul(basis.transpose(0, 2, 1), basis), basis.sum(axis=1)

    def derived(self, constants: Array) -> dict[str, Array]:
        """Return a = beta/(alpha+beta) of N* ~ C^a and b = 1 - a of D* ~ C^b, for C proportional to N D."""
        if self.optimum is None:
            return {}
        alpha, beta = (constants[..., self.names.index(name)] for name in self.optimum)
        a = beta / (alpha + beta)
        return {"a": a, "b": 1.0 - a}

    def equation(self, name: str, value: float) -> tuple[dict[str, float], float] | None:
        """Return (1 - a) beta - a alpha = 0."""
        if self.optimum is None or self.optimum[0] == self.optimum[1] or name not in ("a", "b"):
            return None
        a = value if name == "a" else 1.0 - value
        return {self.optimum[1]: 1.0 - a, self.optimum[0]: -a}, 0.0


@dataclass(frozen=True)
class PowerLaw(Linked):
    """coefficient * product of input^exponent: lr* = c N^p D^q, batch* = c D^r, C_min = c L^p, ..."""

    name: str
    text: str
    coefficient: str
    powers: tuple[tuple[str, str], ...]
    target: str
    reference: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Constants: coefficient, exponents."""
        return (self.coefficient, *(e for _, e in self.powers))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(column for column, _ in self.powers)

    @property
    def logs(self) -> tuple[bool, ...]:
        """The coefficient is positive."""
        return (True, *(False for _ in self.powers))

    def centre(self, logs: Array) -> Array:
        """Return the means."""
        return np.asarray(logs.mean(axis=1))

    def link(self, centres: Array) -> tuple[Array, Array]:
        """Return the map to the log of the coefficient at input 1."""
        matrix = np.eye(len(self.names))
        matrix[0, 1:] = -centres
        return matrix, np.zeros(len(self.names))

    def log_value(self, theta: Array, x: Array) -> Array:
        """Return the log of the product."""
        return np.asarray(theta[:, :1] + theta[:, 1:] @ x)

    def log_value_and_pull(self, theta: Array, x: Array) -> tuple[Array, Pull]:
        """Return the log of the product; its gradient is 1 and x."""
        rows = np.vstack((np.ones(x.shape[1]), x))
        return self.log_value(theta, x), lambda weights: np.asarray(weights @ rows.T)

    def jacobian(self, theta: Array, x: Array) -> Array:
        """Return 1 and x (R, n, p)."""
        rows = np.vstack((np.ones(x.shape[1]), x)).T
        return np.array(np.broadcast_to(rows, (len(theta), *rows.shape)))

    def bend(self, theta: Array, x: Array, weights: Array, jacobian: Array | None = None) -> Array:
        """Return zeros: its log is linear in the constants."""
        return np.zeros((*theta.shape, theta.shape[1]))

    def candidates(self, x: Array, y: Array) -> Candidates:
        """Return least squares: there is one minimum."""
        found = np.linalg.lstsq(np.vstack((np.ones(x.shape[1]), x)).T, y, rcond=None)[0]
        return Candidates(np.asarray(found[None], dtype=np.float64))


def _terms(*terms: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return powers from "A params^alpha tokens^beta": coefficient, then input^exponent."""
    out = []
    for term in terms:
        coefficient, *parts = term.split()
        out.append((coefficient, tuple((p.partition("^")[0], p.partition("^")[2]) for p in parts)))
    return tuple(out)


SURFACE = SumOfPowers(
    "chinchilla", "E + A/N^alpha + B/D^beta", "E", _terms("A params^alpha", "B tokens^beta"),
    "Hoffmann et al. 2022, arXiv 2203.15556, eq. 2", optimum=("alpha", "beta"),
)  # fmt: skip
TIED = SumOfPowers(
    "chinchilla_tied", "E + A/N^alpha + B/D^alpha", "E", _terms("A params^alpha", "B tokens^alpha"),
    "Muennighoff et al. 2023, arXiv 2305.16264, appendix A", optimum=("alpha", "alpha"),
)  # fmt: skip
NO_FLOOR = SumOfPowers(
    "chinchilla_no_floor", "A/N^alpha + B/D^beta", "", _terms("A params^alpha", "B tokens^beta"),
    "Hoffmann et al. 2022 with E = 0", optimum=("alpha", "beta"),
)  # fmt: skip
INTERACTION = SumOfPowers(
    "chinchilla_interaction", "E + A/N^alpha + B/D^beta + G/(N^gamma D^delta)", "E",
    _terms("A params^alpha", "B tokens^beta", "G params^gamma tokens^delta"),
    "Hoffmann et al. 2022, eq. 2, with a term that couples N and D",
)  # fmt: skip
FRONTIER = SumOfPowers(
    "frontier", "L_inf + a*(C/reference_flops)^-alpha", "L_inf", _terms("a flops^alpha"),
    "Kaplan et al. 2020, arXiv 2001.08361, sec. 6; Henighan et al. 2020, arXiv 2010.14701, eq. 1.1",
)  # fmt: skip
FRONTIER_NO_FLOOR = SumOfPowers(
    "frontier_no_floor", "a*(C/reference_flops)^-alpha", "", _terms("a flops^alpha"), "Kaplan et al. 2020, sec. 6"
)
COMPUTE = SumOfPowers(
    "compute", "L_inf + a*C^-alpha", "L_inf", _terms("a flops^alpha"), "Henighan et al. 2020, arXiv 2010.14701, eq. 1.1"
)
