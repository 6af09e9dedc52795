"""Kaplan et al. 2020, with and without an irreducible loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, exp, logaddexp

REFERENCE = "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5"


class Kaplan(Expression):
    """[(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D."""

    name: ClassVar[str] = "kaplan"
    text: ClassVar[str] = "((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D"
    reference: ClassVar[str] = REFERENCE
    names: ClassVar[tuple[str, ...]] = ("N_c", "D_c", "alpha_N", "alpha_D")
    inputs: ClassVar[tuple[str, ...]] = ("params", "tokens")
    positive: ClassVar[tuple[str, ...]] = names

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        by_size = exp(c["alpha_N"] - c["alpha_D"]) * (c["N_c"] - x["params"])
        return exp(c["alpha_D"]) * logaddexp(by_size, c["D_c"] - x["tokens"])

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over both exponents: loss^(1/alpha_D) is linear in what is left."""
        alpha_n, alpha_d = product(np.geomspace(0.02, 1.0, 12), np.geomspace(0.03, 1.0, 12))
        return scales(x, y[None], alpha_n, alpha_d)


class KaplanFloor(Expression):
    """E + [(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D."""

    name: ClassVar[str] = "kaplan_floor"
    text: ClassVar[str] = "E + ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D"
    reference: ClassVar[str] = REFERENCE + ", with an irreducible loss E"
    names: ClassVar[tuple[str, ...]] = ("E", *Kaplan.names)
    inputs: ClassVar[tuple[str, ...]] = Kaplan.inputs
    positive: ClassVar[tuple[str, ...]] = names

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        return logaddexp(c["E"], Kaplan().formula(c, x))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over both exponents and E."""
        lowest = float(np.exp(y.min()))
        floor, alpha_n, alpha_d = product(
            lowest * np.array([0.05, 0.3, 0.6, 0.8, 0.9]), np.geomspace(0.05, 1.0, 9), np.geomspace(0.05, 1.0, 9)
        )
        return {"E": np.log(floor), **scales(x, np.log(np.exp(y)[None] - floor[:, None]), alpha_n, alpha_d)}


def scales(x: Mapping[str, Array], y: Array, alpha_n: Array, alpha_d: Array) -> dict[str, Array]:
    """Return ln N_c, ln D_c of least relative error for exponents (G,), and their logs; `y` is (G or 1, n)."""
    power = y / alpha_d[:, None]
    size = np.exp(-(alpha_n / alpha_d)[:, None] * (x["params"] - x["params"].mean()) - power)
    data = np.exp(-(x["tokens"] - x["tokens"].mean()) - power)
    ss, sd, dd = (size * size).sum(1), (size * data).sum(1), (data * data).sum(1)
    ts, td = size.sum(1), data.sum(1)
    determinant = np.maximum(ss * dd - sd * sd, 1e-12 * ss * dd)
    first = np.maximum((dd * ts - sd * td) / determinant, 1e-2 * ts / ss)
    second = np.maximum((ss * td - sd * ts) / determinant, 1e-2 * td / dd)
    return {
        "N_c": np.log(first) * alpha_d / alpha_n + x["params"].mean(),
        "D_c": np.log(second) + x["tokens"].mean(),
        "alpha_N": np.log(alpha_n),
        "alpha_D": np.log(alpha_d),
    }
