"""Smooth curves that the losses of most runs of one study lie on: a quadratic in ln N and ln D, and a sum of powers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np

from analysis.inputs.dataset import Array, Index, Rows

FEWEST = 8
FITTED = 20_000
"""Rows that the smooth curve is fitted to, at most."""
FITTED_POWERS, FITTED_ROUGHLY = 2_000, 200
"""The same of a sum of powers, which is tried at many exponents."""
EXPONENTS = (0.1, 0.17, 0.25, 0.35, 0.5, 0.7, 1.0)
FEW_EXPONENTS = (0.2, 0.35, 0.6)
LEAST_RESIDUAL = 1e-4
ROUNDS, FEW_ROUNDS = 25, 4
UPPER = ((0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2))
"""Rows and columns of the upper triangle of a matrix (3, 3)."""
FULL = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])
"""Where the entries of a symmetric matrix (3, 3) are in its upper triangle."""
RIDGES = np.eye(3)


class Curve(Protocol):
    """A family of curves over the sizes and tokens of n rows."""

    def through(self, y: Array, quick: bool = False) -> Array:
        """Return ln loss (n,) on the curve of least absolute residuals from `y`, ln loss (n,); `quick` is roughly."""
        ...


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Curves that are linear in the columns of a design (n, k)."""

    design: Array

    def through(self, y: Array, quick: bool = False) -> Array:
        """Return ln loss (n,) on the curve of least absolute (`quick`: squared) residuals from `y`."""
        some = evenly(len(y), FITTED)
        design, seen = self.design[some], y[some]
        weights = np.ones(len(seen))
        found: Array = np.zeros(design.shape[1])
        for _ in range(1 if quick else 40):  # least absolute values by reweighting: a few wrong rows do not bend it
            root = np.sqrt(weights)
            found = np.asarray(np.linalg.lstsq(design * root[:, None], seen * root, rcond=None)[0], dtype=np.float64)
            weights = 1.0 / np.maximum(np.abs(seen - design @ found), LEAST_RESIDUAL)
        return np.asarray(self.design @ found)


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of a sum of powers, 1, N^-alpha and D^-beta, of n rows at g pairs of exponents: `values` (g, 3, n).

    The sum is fitted to m of the rows, `some` (m,): `fitted` (g, 3, m) are their terms and `products` (g, 6, m) those
    of two of them, of the first with all three, of the second with the last two, and of the third with itself.
    """

    values: Array
    some: Index
    fitted: Array
    products: Array

    @classmethod
    def of(cls, n: Array, d: Array, exponents: Sequence[tuple[float, float]], most: int) -> Terms:
        """Return the terms of ln N and ln D (n,) at pairs of exponents, to be fitted to at most so many rows."""
        values = np.stack([np.stack((np.ones_like(n), np.exp(-a * n), np.exp(-b * d))) for a, b in exponents])
        some = anywhere(len(n), most)
        fitted = values[:, :, some]
        return cls(values, some, fitted, fitted[:, UPPER[0]] * fitted[:, UPPER[1]])


@dataclass(frozen=True, eq=False)
class Powers:
    """E + A / N^alpha + B / D^beta with no negative term, at pairs of exponents; `rough` is of fewer pairs and rows."""

    terms: Terms
    rough: Terms

    def through(self, y: Array, quick: bool = False) -> Array:
        """Return ln loss (n,) on the curve of least absolute residuals from `y`; `quick` takes fewer rounds."""
        terms = self.rough if quick else self.terms
        seen = y[terms.some]
        loss = np.exp(seen)
        on = np.broadcast_to(loss, (len(terms.fitted), len(seen)))
        found = np.zeros((len(terms.fitted), 3))
        for _ in range(FEW_ROUNDS if quick else ROUNDS):
            found = _without_negative(terms, 1.0 / (on * np.maximum(np.abs(loss - on), LEAST_RESIDUAL * on)), loss)
            on = np.maximum((found[:, None, :] @ terms.fitted)[:, 0], 1e-12)
        best = int(np.argmin(np.abs(seen - np.log(on)).mean(axis=1)))
        return np.asarray(np.log(np.maximum(found[best] @ terms.values[best], 1e-12)))


def _without_negative(terms: Terms, weights: Array, loss: Array) -> Array:
    """Return the least squares' coefficients (g, 3) of `loss` (m,) by `weights` (g, m), none below 0.

    Terms whose coefficient is negative are left out, until there are none.
    """
    gram = (terms.products @ weights[:, :, None])[:, FULL, 0]
    right = (terms.fitted @ (weights * loss)[:, :, None])[:, :, 0]
    alive = np.ones_like(right)
    found = _solved(gram, right, alive)
    while (found < 0.0).any():
        alive = alive * (found >= 0.0)
        found = _solved(gram, right, alive)
    return found


def _solved(gram: Array, right: Array, alive: Array) -> Array:
    """Return what solves the normal equations (g, 3, 3) and (g, 3), with 0 for terms (g, 3) that are not alive."""
    diagonal = np.einsum("gii->gi", gram)
    root = alive / np.sqrt(np.where(alive > 0.0, diagonal, 1.0))
    scaled = gram * root[:, :, None] * root[:, None, :] + RIDGES * (1e-9 + 1.0 - alive)[:, None, :]
    return np.asarray(np.linalg.solve(scaled, (right * root)[:, :, None])[:, :, 0] * root)


def curves(rows: Rows) -> tuple[Quadratic, Powers]:
    """Return the families that the rows are held against."""
    n, d = (np.log(v) - np.log(v).mean() for v in (rows.params, rows.tokens))
    columns = [np.ones_like(n), n, d]
    exponents: list[tuple[float, float]] = [(one, one) for one in FEW_EXPONENTS]
    rough = exponents
    if len(rows) >= 3 * FEWEST:
        columns += [n * n, d * d, n * d]
        exponents, rough = list(product(EXPONENTS, EXPONENTS)), list(product(FEW_EXPONENTS, FEW_EXPONENTS))
    every, few = Terms.of(n, d, exponents, FITTED_POWERS), Terms.of(n, d, rough, FITTED_ROUGHLY)
    return Quadratic(np.stack(columns, axis=1)), Powers(every, few)


def evenly(count: int, most: int) -> Index:
    """Return the numbers of `count` rows, of very many of `most` that are evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


def anywhere(count: int, most: int) -> Index:
    """Return the numbers of `count` rows, of very many of `most` that no order of the rows favours."""
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).permutation(count)[:most])
