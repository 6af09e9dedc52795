"""Mixtures of experts: a surface in active parameters, tokens and the number of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, logaddexp
from analysis.laws.sum_of_powers import SURFACE


class Experts(Expression):
    """E + A X^delta N^-(alpha + gamma ln X) + B X^omega D^-(beta + zeta ln X), with N active parameters, X experts."""

    name: ClassVar[str] = "moe"
    text: ClassVar[str] = "E + A X^delta N^-(alpha + gamma ln X) + B X^omega D^-(beta + zeta ln X)"
    reference: ClassVar[str] = "Ludziejewski et al. 2025, arXiv 2502.05172, eq. 5 (X is the count; there it saturates)"
    names: ClassVar[tuple[str, ...]] = ("E", "A", "B", "alpha", "beta", "delta", "gamma", "omega", "zeta")
    inputs: ClassVar[tuple[str, ...]] = ("params_active", "tokens", "experts")
    positive: ClassVar[tuple[str, ...]] = ("E", "A", "B")

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        n, d, e = x["params_active"], x["tokens"], x["experts"]
        size = c["A"] + c["delta"] * e - (c["alpha"] + c["gamma"] * e) * n
        data = c["B"] + c["omega"] * e - (c["beta"] + c["zeta"] * e) * d
        return logaddexp(c["E"], logaddexp(size, data))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return surfaces that know of no experts, with a few tilts by their number."""
        logs = np.stack((x["params_active"], x["tokens"]))
        centres, middle = logs.mean(axis=1), x["experts"].mean()
        found = SURFACE.candidates(logs - centres[:, None], y)
        assert found.scores is not None
        few = found.theta[np.argsort(found.scores, kind="stable")[:60:10]] @ SURFACE.link(centres)[0].T
        which, delta, omega = product(np.arange(len(few)), (-0.3, -0.1, 0.0, 0.1), (-0.1, 0.0, 0.1))
        E, A, B, alpha, beta = few[which.astype(int)].T
        none = np.zeros_like(delta)
        return {
            "E": E, "A": A - delta * middle, "B": B - omega * middle, "alpha": alpha, "beta": beta, "delta": delta,
            "gamma": none, "omega": omega, "zeta": none,
        }  # fmt: skip
