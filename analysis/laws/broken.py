"""Smoothly broken power law with one break."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, exp, logaddexp, softplus
from analysis.laws.sum_of_powers import COMPUTE


class Broken(Expression):
    """a + b C^-c0 (1 + (C/d)^(1/f))^(-c1 f): the slope changes by c1 at C = d, over a width f in ln C."""

    name: ClassVar[str] = "broken"
    text: ClassVar[str] = "a + b C^-c0 (1 + (C/d)^(1/f))^(-c1 f)"
    reference: ClassVar[str] = "Caballero et al. 2022, arXiv 2210.14891, eq. 1, one break"
    names: ClassVar[tuple[str, ...]] = ("a", "b", "c0", "c1", "d", "f")
    inputs: ClassVar[tuple[str, ...]] = ("flops",)
    positive: ClassVar[tuple[str, ...]] = ("a", "b", "d", "f")

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        width = exp(c["f"])
        bend = softplus((x["flops"] - c["d"]) / width) * width * c["c1"]
        return logaddexp(c["a"], c["b"] - c["c0"] * x["flops"] - bend)

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over place, width and size of the break around the law without one."""
        centre = x["flops"].mean(keepdims=True)
        found = COMPUTE.candidates(x["flops"][None] - centre[:, None], y)
        assert found.scores is not None
        few = found.theta[np.argsort(found.scores, kind="stable")[:9:4]] @ COMPUTE.link(centre)[0].T
        which, place, width, turn = product(
            np.arange(len(few)),
            np.quantile(x["flops"], [0.2, 0.4, 0.6, 0.8]),
            (0.3, 1.0, 3.0),
            (-0.1, -0.03, 0.03, 0.1),
        )
        floor, scale, slope = few[which.astype(int)].T
        # Where the break is a sum of two slopes, half of the change belongs to each side of it.
        return {
            "a": floor, "b": scale - 0.5 * turn * place, "c0": slope - 0.5 * turn, "c1": turn, "d": place,
            "f": np.log(width),
        }  # fmt: skip
