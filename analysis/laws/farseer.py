"""Farseer: nine constants, the exponent of D depends on N."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, exp, logaddexp, power
from analysis.laws.sum_of_powers import SURFACE


class Farseer(Expression):
    """exp(s N^q + S) + exp(B N^b + Q) D^-exp(A N^a + F)."""

    name: ClassVar[str] = "farseer"
    text: ClassVar[str] = "exp(s N^q + S) + exp(B N^b + Q) D^-exp(A N^a + F)"
    reference: ClassVar[str] = "Li et al. 2025, Farseer, arXiv 2506.10972"
    names: ClassVar[tuple[str, ...]] = ("s", "q", "S", "B", "b", "Q", "A", "a", "F")
    inputs: ClassVar[tuple[str, ...]] = ("params", "tokens")

    def centre(self, logs: Array) -> Array:
        """Return the mean of ln N alone: with D at its centre the law would have another form."""
        return np.array([logs[0].mean(), 0.0])

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss; internally (N^q - 1)/q takes the place of N^q, N at its centre: slopes there, not curves."""
        n, d = x["params"], x["tokens"]
        floor = c["s"] * power(c["q"], n) + c["S"]
        size = c["B"] * power(c["b"], n) + c["Q"]
        return logaddexp(floor, size - exp(c["A"] * power(c["a"], n) + c["F"]) * d)

    def link(self, centres: Array) -> tuple[Array, Array]:
        """Return which constants are held as they are: the exponents of N alone."""
        matrix = np.full((9, 9), np.nan)
        for name in "qba":
            i = self.names.index(name)
            matrix[i] = np.eye(9)[i]
        return matrix, np.zeros(9)

    def natural(self, theta: Array, centres: Array) -> Array:
        """Return the constants as published: coefficients of powers of N itself."""
        out = theta.copy()
        for i in (0, 3, 6):
            slope = theta[:, i] / theta[:, i + 1]
            out[:, i], out[:, i + 2] = slope * np.exp(-theta[:, i + 1] * centres[0]), theta[:, i + 2] - slope
        return out

    def internal(self, constants: Array, centres: Array) -> Array:
        """Return `theta` of published constants."""
        out = np.array(constants, dtype=np.float64)
        for i in (0, 3, 6):
            slope = constants[:, i] * np.exp(constants[:, i + 1] * centres[0])
            out[:, i], out[:, i + 2] = slope * constants[:, i + 1], constants[:, i + 2] + slope
        return out

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return starts around the surface E + A/N^alpha + B/D^beta, whose floor and exponent do not depend on N."""
        n = x["params"]
        logs = np.stack((n, x["tokens"]))
        centres = logs.mean(axis=1)
        found = SURFACE.candidates(logs - centres[:, None], y)
        assert found.scores is not None
        best = found.theta[np.argsort(found.scores, kind="stable")[:1]]
        E, A, B, alpha, beta = SURFACE.natural(best, centres)[0]
        level = np.log(E + A * np.exp(-alpha * n))
        spread = float(np.ptp(n))
        q, b, bend, a, tilt = product(
            (-0.4, -0.2, -0.05, 0.1, 0.2), (-0.1, 0.1), (-0.5, 0.0, 0.5, 2.0), (-0.1, 0.1), (-0.3, 0.0, 0.3)
        )
        lines = {value: np.polyfit(np.expm1(value * n) / value, level, 1) for value in np.unique(q)}
        return {
            "s": np.array([lines[v][0] for v in q]), "q": q, "S": np.array([lines[v][1] for v in q]),
            "B": bend / spread, "b": b, "Q": np.full(len(q), np.log(B)), "A": tilt / spread, "a": a,
            "F": np.full(len(q), np.log(beta)),
        }  # fmt: skip
