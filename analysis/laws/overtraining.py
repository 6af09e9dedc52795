"""Gadre et al. 2024: loss over compute and the degree of over-training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression
from analysis.laws.dual import Dual, logaddexp
from analysis.laws.sum_of_powers import SumOfPowers


class OverTraining(Expression):
    """E + (a M^eta + b M^-eta) C^-eta, with M = D/N tokens per parameter."""

    name: ClassVar[str] = "overtraining"
    text: ClassVar[str] = "E + (a M^eta + b M^-eta) C^-eta"
    reference: ClassVar[str] = "Gadre et al. 2024, arXiv 2403.08540, eq. 4"
    names: ClassVar[tuple[str, ...]] = ("E", "a", "b", "eta")
    inputs: ClassVar[tuple[str, ...]] = ("params", "tokens", "flops")
    positive: ClassVar[tuple[str, ...]] = ("E", "a", "b")

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        ratio = x["tokens"] - x["params"]
        more = c["a"] + c["eta"] * (ratio - x["flops"])
        fewer = c["b"] - c["eta"] * (ratio + x["flops"])
        return logaddexp(c["E"], logaddexp(more, fewer))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over eta, in which alone the law is not linear."""
        ratio = x["tokens"] - x["params"]
        columns = np.stack((x["flops"] - ratio, x["flops"] + ratio))
        centres = columns.mean(axis=1)
        twin = SumOfPowers("", "", "E", (("a", (("more", "eta"),)), ("b", (("fewer", "eta"),))))
        found = twin.candidates(columns - centres[:, None], y)
        matrix, _ = twin.link(centres)
        return dict(zip(twin.names, (found.theta @ matrix.T).T, strict=True))
