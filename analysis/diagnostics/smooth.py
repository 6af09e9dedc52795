"""Smooth curves that the losses of most runs of one study lie on: a quadratic in ln N and ln D, and a sum of powers."""

from __future__ import annotations

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
class Powers:
    """E + A / N^alpha + B / D^beta with no negative term, at exponents of a grid: `terms` are (exponents, n, 3).

    `rough` are those (fewer, n, 3) of fewer exponents.
    """

    terms: Array
    rough: Array

    def through(self, y: Array, quick: bool = False) -> Array:
        """Return ln loss (n,) on the curve of least absolute residuals from `y`; `quick` takes fewer rounds."""
        some = anywhere(len(y), FITTED_ROUGHLY if quick else FITTED_POWERS)
        every = self.rough if quick else self.terms
        terms, seen = every[:, some], y[some]
        loss = np.exp(seen)
        on = np.broadcast_to(loss, terms.shape[:2])
        found = np.zeros((len(terms), 3))
        for _ in range(FEW_ROUNDS if quick else ROUNDS):
            weights = 1.0 / (on * np.maximum(np.abs(loss - on), LEAST_RESIDUAL * on))
            alive = np.ones((len(terms), 3))
            found = _solved(terms, weights, loss, alive)
            while (found < 0.0).any():
                alive = alive * (found >= 0.0)
                found = _solved(terms, weights, loss, alive)
            on = np.maximum((terms @ found[:, :, None])[:, :, 0], 1e-12)
        best = int(np.argmin(np.abs(seen - np.log(on)).mean(axis=1)))
        return np.asarray(np.log(np.maximum(every[best] @ found[best], 1e-12)))


def _solved(terms: Array, weights: Array, loss: Array, alive: Array) -> Array:
    """Return the weighted least squares' coefficients (exponents, 3), 0 for terms that are not alive."""
    held = terms * alive[:, None, :]
    weighted = (held * weights[:, :, None]).swapaxes(1, 2)
    scale = np.einsum("gkn,gnk->gk", weighted, held) + (1.0 - alive)
    gram = weighted @ held / np.sqrt(scale[:, :, None] * scale[:, None, :])
    gram += np.eye(3) * (1e-9 + 1.0 - alive)[:, None, :]
    right = (weighted @ loss) / np.sqrt(scale)
    return np.asarray(np.linalg.solve(gram, right[:, :, None])[:, :, 0] / np.sqrt(scale) * alive)


def curves(rows: Rows) -> tuple[Quadratic, Powers]:
    """Return the families that the rows are held against."""
    n, d = (np.log(v) - np.log(v).mean() for v in (rows.params, rows.tokens))
    columns = [np.ones_like(n), n, d]
    exponents: tuple[tuple[float, float], ...] = tuple((one, one) for one in FEW_EXPONENTS)
    rough = exponents
    if len(rows) >= 3 * FEWEST:
        columns += [n * n, d * d, n * d]
        exponents, rough = tuple(product(EXPONENTS, EXPONENTS)), tuple(product(FEW_EXPONENTS, FEW_EXPONENTS))
    terms, few = (
        np.stack([np.stack((np.ones_like(n), np.exp(-alpha * n), np.exp(-beta * d)), axis=1) for alpha, beta in pairs])
        for pairs in (exponents, rough)
    )
    return Quadratic(np.stack(columns, axis=1)), Powers(terms, few)


def evenly(count: int, most: int) -> Index:
    """Return the numbers of `count` rows, of very many of `most` that are evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


def anywhere(count: int, most: int) -> Index:
    """Return the numbers of `count` rows, of very many of `most` that no order of the rows favours."""
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).permutation(count)[:most])
