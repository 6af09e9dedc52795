"""Muennighoff et al. 2023: repeated tokens and excess parameters are worth less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, exp, expm1, log, logaddexp, minimum
from analysis.laws.sum_of_powers import SURFACE


class Repeats(Expression):
    """E + A/N'^alpha + B/D'^beta, with D' = U_D (1 + R_D (1 - exp(-(D/U_D - 1)/R_D))), N' likewise.

    U_D are the unique tokens; U_N is the smaller of N and the size that is compute-optimal for U_D. All constants but
    R_D and R_N are those of the single-epoch law: fix them (`fix=`) where these were fitted on their own.
    """

    name: ClassVar[str] = "repeats"
    text: ClassVar[str] = "E + A/N'^alpha + B/D'^beta, D' = U_D (1 + R_D (1 - exp(-(D/U_D - 1)/R_D))), N' likewise"
    reference: ClassVar[str] = "Muennighoff et al. 2023, arXiv 2305.16264, eq. 5 and 6"
    names: ClassVar[tuple[str, ...]] = ("E", "A", "B", "alpha", "beta", "R_D", "R_N")
    inputs: ClassVar[tuple[str, ...]] = ("params", "tokens", "unique_tokens")
    positive: ClassVar[tuple[str, ...]] = ("E", "A", "B", "R_D", "R_N")

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        unique = np.minimum(x["unique_tokens"], x["tokens"])
        ratio = log(c["alpha"]) - log(c["beta"]) + c["A"] - c["B"] + c["beta"] * unique
        useful = minimum(Dual(x["params"]), ratio / c["alpha"])
        size = useful + _worth(Dual(x["params"]) - useful, c["R_N"])
        data = _worth(Dual(x["tokens"] - unique), c["R_D"]) + unique
        return logaddexp(c["E"], logaddexp(c["A"] - c["alpha"] * size, c["B"] - c["beta"] * data))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over R_D and R_N around single-epoch surfaces, fitted where the tokens were not repeated."""
        fresh = np.asarray(x["tokens"] - x["unique_tokens"] <= 0.05)
        rows = fresh if fresh.sum() >= 6 else np.ones(len(y), bool)
        logs = np.stack((x["params"], x["tokens"]))[:, rows]
        centres = logs.mean(axis=1)
        found = SURFACE.candidates(logs - centres[:, None], y[rows])
        assert found.scores is not None
        matrix, _ = SURFACE.link(centres)
        few = found.theta[np.argsort(found.scores, kind="stable")[:60:20]] @ matrix.T
        which, more_data, more_size = product(
            np.arange(len(few)), np.geomspace(1.0, 1e3, 10), np.geomspace(0.5, 1e2, 8)
        )
        base = dict(zip(SURFACE.names, few[which.astype(int)].T, strict=True))
        return {**base, "R_D": np.log(more_data), "R_N": np.log(more_size)}


def _worth(excess: Dual, decay: Dual) -> Dual:
    """Return ln(1 + R* (1 - exp(-(e^excess - 1)/R*))) with `decay` = ln R*: what the excess is worth, as a log."""
    limit = exp(decay)
    return log(1.0 - limit * expm1(-(expm1(excess) / limit)))
