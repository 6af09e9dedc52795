"""Optimal learning rate and batch size, and the critical batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression
from analysis.laws.dual import Dual, softplus
from analysis.laws.sum_of_powers import PowerLaw

LEARNING_RATE = PowerLaw(
    "learning_rate", "c N^p D^q", "c", (("params", "p"), ("tokens", "q")), "lr",
    "Li et al. 2025, Step Law, arXiv 2503.04715, eq. 1",
)  # fmt: skip
LEARNING_RATE_COMPUTE = PowerLaw(
    "learning_rate_compute", "c C^p", "c", (("flops", "p"),), "lr", "DeepSeek-AI 2024, arXiv 2401.02954, eq. 1"
)
BATCH = PowerLaw(
    "batch", "c D^r", "c", (("tokens", "r"),), "batch_tokens", "Li et al. 2025, Step Law, arXiv 2503.04715, eq. 1"
)
BATCH_COMPUTE = PowerLaw(
    "batch_compute", "c C^r", "c", (("flops", "r"),), "batch_tokens", "DeepSeek-AI 2024, arXiv 2401.02954, eq. 1"
)
CRITICAL_BATCH_OF_LOSS = PowerLaw(
    "critical_batch_of_loss", "B_star L^r", "B_star", (("loss", "r"),), "critical_batch",
    "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.4 (r = -1/alpha_B)",
)  # fmt: skip


class CriticalBatch(Expression):
    """Steps to a fixed loss: S_min (1 + B_crit/B), that is (S/S_min - 1)(E/E_min - 1) = 1 with E_min = S_min B_crit."""

    name: ClassVar[str] = "critical_batch"
    text: ClassVar[str] = "S_min (1 + B_crit/B)"
    reference: ClassVar[str] = "McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11"
    names: ClassVar[tuple[str, ...]] = ("S_min", "B_crit")
    inputs: ClassVar[tuple[str, ...]] = ("batch_tokens",)
    positive: ClassVar[tuple[str, ...]] = ("S_min", "B_crit")
    target: ClassVar[str] = "steps"

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln steps."""
        return c["S_min"] + softplus(c["B_crit"] - x["batch_tokens"])

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over B_crit."""
        critical = np.linspace(x["batch_tokens"].min() - 3, x["batch_tokens"].max() + 3, 40)
        excess = np.logaddexp(0.0, critical[:, None] - x["batch_tokens"][None])
        return {"S_min": (y[None] - excess).mean(axis=1), "B_crit": critical}
