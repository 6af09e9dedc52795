"""Every law as its paper writes it, in plain numbers and natural units: what the fitted forms are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log
from typing import Any

Numbers = Mapping[str, Any]


def repeats(c: Numbers, i: Numbers) -> Any:
    """Muennighoff et al. 2023, eq. 5 and 6."""
    unique = min(i["unique_tokens"], i["tokens"])
    g = (c["alpha"] * c["A"] / (c["beta"] * c["B"])) ** (1 / (c["alpha"] + c["beta"]))
    best = (unique * g) ** (c["beta"] / c["alpha"]) * g
    useful = min(i["params"], best)
    size = useful + useful * c["R_N"] * (1 - exp(-(i["params"] / useful - 1) / c["R_N"]))
    data = unique + unique * c["R_D"] * (1 - exp(-(i["tokens"] / unique - 1) / c["R_D"]))
    return c["E"] + c["A"] / size ** c["alpha"] + c["B"] / data ** c["beta"]


def effective(c: Numbers, i: Numbers) -> Any:
    """Kumar et al. 2024, eq. 4."""
    out = i["params"]
    for gamma, bits in (("gamma_w", "bits_weights"), ("gamma_a", "bits_activations"), ("gamma_kv", "bits_cache")):
        out *= 1 - exp(-i[bits] / c[gamma])
    return out


def precision(c: Numbers, i: Numbers) -> Any:
    return c["E"] + c["A"] / effective(c, i) ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"]


def precision_after(c: Numbers, i: Numbers) -> Any:
    after = c["G"] * i["tokens"] ** c["g_D"] / effective(c, i) ** c["g_N"] * exp(-i["bits_after"] / c["gamma_post"])
    for rate, bits in (("C_w", "bits_weights"), ("C_a", "bits_activations"), ("C_kv", "bits_cache")):
        after *= 1 - exp(-c[rate] * max(i[bits] - i["bits_after"], 1e-12))
    return precision(c, i) + after


def kaplan(c: Numbers, i: Numbers) -> Any:
    """Kaplan et al. 2020, eq. 1.5."""
    size = (c["N_c"] / i["params"]) ** (c["alpha_N"] / c["alpha_D"])
    return (size + c["D_c"] / i["tokens"]) ** c["alpha_D"]


def overtraining(c: Numbers, i: Numbers) -> Any:
    """Gadre et al. 2024, eq. 4."""
    many = i["tokens"] / i["params"]
    return c["E"] + (c["a"] * many ** c["eta"] + c["b"] * many ** -c["eta"]) * i["flops"] ** -c["eta"]


def broken(c: Numbers, i: Numbers) -> Any:
    """Caballero et al. 2022, eq. 1."""
    at = i["flops"]
    return c["a"] + c["b"] * at ** -c["c0"] * (1 + (at / c["d"]) ** (1 / c["f"])) ** (-c["c1"] * c["f"])


def experts(c: Numbers, i: Numbers) -> Any:
    """Ludziejewski et al. 2025, eq. 5."""
    n, d, many = i["params_active"], i["tokens"], i["experts"]
    size = c["A"] * many ** c["delta"] * n ** -(c["alpha"] + c["gamma"] * log(many))
    return c["E"] + size + c["B"] * many ** c["omega"] * d ** -(c["beta"] + c["zeta"] * log(many))


FORMULAS: dict[str, Callable[[Any, Any], float]] = {
    "chinchilla": lambda c, i: c["E"] + c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"],
    "chinchilla_tied": lambda c, i: c["E"] + c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["alpha"],
    "chinchilla_no_floor": lambda c, i: c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"],
    "chinchilla_interaction": lambda c, i: (
        c["E"] + c["A"] / i["params"] ** c["alpha"] + c["B"] / i["tokens"] ** c["beta"]
        + c["G"] / (i["params"] ** c["gamma"] * i["tokens"] ** c["delta"])
    ),
    "compute": lambda c, i: c["L_inf"] + c["a"] * i["flops"] ** -c["alpha"],
    "frontier": lambda c, i: c["L_inf"] + c["a"] * i["flops"] ** -c["alpha"],
    "frontier_no_floor": lambda c, i: c["a"] * i["flops"] ** -c["alpha"],
    "kaplan": kaplan,
    "kaplan_floor": lambda c, i: c["E"] + kaplan(c, i),
    "farseer": lambda c, i: (
        exp(c["s"] * i["params"] ** c["q"] + c["S"])
        + exp(c["B"] * i["params"] ** c["b"] + c["Q"]) * i["tokens"] ** -exp(c["A"] * i["params"] ** c["a"] + c["F"])
    ),
    "overtraining": overtraining,
    "repeats": repeats,
    "broken": broken,
    "learning_rate": lambda c, i: c["c"] * i["params"] ** c["p"] * i["tokens"] ** c["q"],
    "learning_rate_compute": lambda c, i: c["c"] * i["flops"] ** c["p"],
    "batch": lambda c, i: c["c"] * i["tokens"] ** c["r"],
    "batch_compute": lambda c, i: c["c"] * i["flops"] ** c["r"],
    "critical_batch_of_loss": lambda c, i: c["B_star"] * i["loss"] ** c["r"],
    "critical_batch": lambda c, i: c["S_min"] * (1 + c["B_crit"] / i["batch_tokens"]),
    "precision": precision,
    "precision_after": precision_after,
    "moe": experts,
    "downstream": lambda c, i: c["eps"] - c["k"] * exp(-c["gamma"] * i["loss"]),
}  # fmt: skip
