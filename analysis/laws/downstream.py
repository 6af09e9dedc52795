"""Downstream error from loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression
from analysis.laws.dual import Dual, exp, log


class Downstream(Expression):
    """error = eps - k exp(-gamma L)."""

    name: ClassVar[str] = "downstream"
    text: ClassVar[str] = "eps - k exp(-gamma L)"
    reference: ClassVar[str] = "Gadre et al. 2024, arXiv 2403.08540, eq. 5"
    names: ClassVar[tuple[str, ...]] = ("eps", "k", "gamma")
    inputs: ClassVar[tuple[str, ...]] = ("loss",)
    positive: ClassVar[tuple[str, ...]] = ("eps", "k", "gamma")
    target: ClassVar[str] = "error"

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln error."""
        return log(exp(c["eps"]) - exp(c["k"] - exp(c["gamma"]) * np.exp(x["loss"])))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return eps and k of least squares for a grid of gamma."""
        gamma = np.geomspace(0.05, 5.0, 60)
        error, loss = np.exp(y), np.exp(x["loss"])
        fall = np.exp(-gamma[:, None] * (loss - loss.mean())[None])
        centred = fall - fall.mean(axis=1, keepdims=True)
        slope = -(centred @ (error - error.mean())) / np.maximum((centred**2).sum(axis=1), 1e-300)
        slope = np.maximum(slope, 1e-3 * error.mean())
        level = error.mean() + slope * fall.mean(axis=1)
        return {"eps": np.log(level), "k": np.log(slope) + gamma * loss.mean(), "gamma": np.log(gamma)}
