"""Kumar et al. 2024: training in few bits acts like fewer parameters; quantising afterwards adds loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from analysis.laws.base import Array, Expression, product
from analysis.laws.dual import Dual, exp, log, logaddexp
from analysis.laws.sum_of_powers import SURFACE

PAPER = "Kumar et al. 2024, arXiv 2411.04330"
BITS = {"gamma_w": "bits_weights", "gamma_a": "bits_activations", "gamma_kv": "bits_cache"}
HARDENED = {"C_w": "bits_weights", "C_a": "bits_activations", "C_kv": "bits_cache"}
NO_FEWER = 1e-12
"""Bits by which what was trained in as few is quantised: of none, no logarithm could be taken."""


class Precision(Expression):
    """E + A/N_eff^alpha + B/D^beta with N_eff = N (1-e^(-P_w/gamma_w)) (1-e^(-P_a/gamma_a)) (1-e^(-P_kv/gamma_kv)).

    The paper's own numbers (table 2, appendix K) are of factors 1 - e^(n_i - P_i/gamma_i): with offsets n_i, which its
    equations leave out. That is this law of bits less n_i gamma_i; only so have its numbers the optimum of 7 bits that
    the paper finds. Fitted to bits as they are this law has no offsets, as the equations are printed.
    """

    name: ClassVar[str] = "precision"
    text: ClassVar[str] = "E + A/N_eff^alpha + B/D^beta, N_eff = N prod_i (1 - exp(-P_i/gamma_i))"
    reference: ClassVar[str] = f"{PAPER}, eq. 3 and 4"
    names: ClassVar[tuple[str, ...]] = ("E", "A", "B", "alpha", "beta", *BITS)
    inputs: ClassVar[tuple[str, ...]] = ("params", "tokens", *BITS.values())
    positive: ClassVar[tuple[str, ...]] = ("E", "A", "B", *BITS)

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        data = c["B"] - c["beta"] * x["tokens"]
        return logaddexp(c["E"], logaddexp(c["A"] - c["alpha"] * effective(c, x), data))

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return a grid over the three gammas around surfaces that know of no precision."""
        return starts(x, y)


class PrecisionAfter(Expression):
    """Precision's law plus what quantising to P_post bits after training adds: eq. 9 and 11 of Kumar et al. 2024.

    delta = G e^(-P_post/gamma_post) D^g_D/N_eff^g_N prod_i (1 - e^(-C_i (P_i - P_post))): more tokens make it larger,
    and weights, activations and caches that were trained in few bits P_i are hardened against it. What was trained in
    P_post bits loses nothing, as the paper defines it; of fewer bits it does not speak, and nothing is lost either. At
    many bits of training it is eq. 2, G D^g_D/N^g_N e^(-P_post/gamma_post). The paper's C_T, gamma_D, gamma_N and its
    offset b (table 2) are G = C_T e^b, g_D, g_N.
    """

    name: ClassVar[str] = "precision_after"
    text: ClassVar[str] = (
        Precision.text + " + G D^g_D/N_eff^g_N exp(-P_post/gamma_post) prod_i (1 - exp(-C_i (P_i - P_post)))"
    )
    reference: ClassVar[str] = f"{PAPER}, eq. 9 and 11"
    names: ClassVar[tuple[str, ...]] = (*Precision.names, "G", "g_D", "g_N", "gamma_post", *HARDENED)
    inputs: ClassVar[tuple[str, ...]] = (*Precision.inputs, "bits_after")
    positive: ClassVar[tuple[str, ...]] = (*Precision.positive, "G", "gamma_post", *HARDENED)

    def formula(self, c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
        """Return ln loss."""
        after = np.exp(x["bits_after"])
        loss = c["G"] + c["g_D"] * x["tokens"] - c["g_N"] * effective(c, x) - after / exp(c["gamma_post"])
        for rate, bits in HARDENED.items():
            fewer = np.maximum(np.exp(x[bits]) - after, NO_FEWER)
            loss = loss + log(1.0 - exp(-(exp(c[rate]) * fewer)))
        return logaddexp(Precision().formula(c, x), loss)

    def start(self, x: Mapping[str, Array], y: Array) -> Mapping[str, Array]:
        """Return precision's grid, with a few post-training terms."""
        base = starts(x, y, 2)
        which, bits, power, hard = product(np.arange(len(base["E"])), (0.5, 1.0, 2.0), (0.2, 0.5), (0.3, 1.0))
        size, data, lowest = x["params"].mean(), x["tokens"].mean(), np.exp(x["bits_after"]).min()
        at = which.astype(int)
        level = np.log(0.1) + y.min() + lowest / bits - power * (data - size)
        return {
            **{name: value[at] for name, value in base.items()}, "G": level, "g_D": power, "g_N": power,
            "gamma_post": np.log(bits), **dict.fromkeys(HARDENED, np.log(hard)),
        }  # fmt: skip


def effective(c: Mapping[str, Dual], x: Mapping[str, Array]) -> Dual:
    """Return ln N_eff."""
    out = Dual(x["params"])
    for gamma, bits in BITS.items():
        out = out + log(1.0 - exp(-(np.exp(x[bits]) / exp(c[gamma]))))
    return out


def starts(x: Mapping[str, Array], y: Array, each: int = 4) -> dict[str, Array]:
    """Return surfaces for combinations of the gammas, fitted to N_eff as these say."""
    out: list[Array] = []
    values = np.geomspace(0.5, 4.0, each)
    for gammas in np.stack(product(values, values, values), axis=1):
        size = x["params"] + sum(
            np.log1p(-np.exp(-np.exp(x[b]) / g)) for b, g in zip(BITS.values(), gammas, strict=True)
        )
        logs = np.stack((size, x["tokens"]))
        centres = logs.mean(axis=1)
        found = SURFACE.candidates(logs - centres[:, None], y)
        assert found.scores is not None
        best = found.theta[np.argmin(found.scores)] @ SURFACE.link(centres)[0].T
        out.append(np.concatenate((best, np.log(gammas))))
    return dict(zip(Precision.names, np.array(out).T, strict=True))
